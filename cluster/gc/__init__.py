"""Apply retention, and remove segments and ledgers that no log uses."""
