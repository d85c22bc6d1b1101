"""The option tables of docs/spark.md, generated: ``python -m distributedlog.spark.tables docs/spark.md``."""

import re
import sys
from dataclasses import fields
from typing import Any

from .options import SinkOptions, SourceOptions

TABLES: dict[str, type[Any]] = {"source": SourceOptions, "sink": SinkOptions}


def table(options: type[Any]) -> str:
    """One table, as Markdown."""
    lines = ["| option | default | meaning | Kafka's |", "| --- | --- | --- | --- |"]
    for one in fields(options):
        row = one.metadata
        kafka = row["kafka"] if " " in row["kafka"] or row["kafka"] == "–" else f"`{row['kafka']}`"
        lines.append(f"| `{row['name']}` | {row['shown']} | {row['meaning']} | {kafka} |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """A document with the tables between its marks made anew."""
    for name, options in TABLES.items():
        begin, end = f"<!-- options: {name} -->", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(text), f"the document has no {begin}"
        made = f"{begin}\n{table(options)}\n{end}"
        text = pattern.sub(lambda _, made=made: made, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            before = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(renewed(before))
