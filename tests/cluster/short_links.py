"""`dlog` whose TLS connections end after seconds, instead of after eight hours: a holiday in a minute."""

from distributedlog.cli.main import main
from distributedlog.runtime.net import tls

RETIRE_S = 4.0

if __name__ == "__main__":
    tls.KEY_LIFETIME_S = RETIRE_S
    main()
