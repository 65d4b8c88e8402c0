"""Statements for fencing in PostgreSQL, with the parameters of psycopg: `%(resource)s`, `%(fence)s`.

They go to `Connection.execute` of psycopg, to a cursor of psycopg2 or Django, and to
`Connection.exec_driver_sql` of SQLAlchemy. The touch is the first statement of a transaction at the
level READ COMMITTED, and the work is in the same transaction.
"""

__all__ = ["IN_TRANSACTION", "SCHEMA", "SEEN", "TOUCH", "TOUCH_SHARED"]

SCHEMA = """\
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 512),
    fence bigint NOT NULL DEFAULT 0 CHECK (fence >= 0),
    shared bigint NOT NULL DEFAULT 0 CHECK (shared >= 0),
    touched bigint NOT NULL DEFAULT 1
)"""
"""The table of fence records. May be run again."""

IN_TRANSACTION = "SAVEPOINT leasehold_fence"
"""Fails outside of a transaction, and does nothing inside one."""

TOUCH = (
    "INSERT INTO leasehold_fence AS guard (resource, fence) VALUES (%(resource)s, %(fence)s) "
    "ON CONFLICT (resource) DO UPDATE SET fence = EXCLUDED.fence, touched = guard.touched + 1 "
    "WHERE guard.fence <= EXCLUDED.fence AND guard.shared <= EXCLUDED.fence "
    "RETURNING fence"
)
"""For an exclusive lease. One row, the fence, if it passes; none if it is stale."""

TOUCH_SHARED = (
    "INSERT INTO leasehold_fence AS guard (resource, shared) VALUES (%(resource)s, %(fence)s) "
    "ON CONFLICT (resource) DO UPDATE SET "
    "shared = GREATEST(guard.shared, EXCLUDED.shared), touched = guard.touched + 1 "
    "WHERE guard.fence <= EXCLUDED.shared "
    "RETURNING shared"
)
"""For a shared lease or for permits: refused only by a later exclusive holder."""

SEEN = "SELECT GREATEST(fence, shared) AS seen FROM leasehold_fence WHERE resource = %(resource)s"
"""The highest fence seen, for messages."""
