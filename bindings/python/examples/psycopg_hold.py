"""psycopg: the lock is a row of the same PostgreSQL database, and the transaction proves it.

No other holder gets the lock before the transaction ends, however long this process was paused.
"""

import leasehold
import psycopg


def write_report(client: leasehold.Client, database: psycopg.Connection) -> int:
    with client.mutex("reports/daily").lock(timeout=5) as guard, database.transaction():
        # The first statement. It fails with LH001 if the lease has ended.
        database.execute("SELECT leasehold.hold(%s, %s)", (guard.key, guard.fence))
        database.execute("INSERT INTO report DEFAULT VALUES")
        return guard.fence


def stale(database: psycopg.Connection, fence: int) -> str | None:
    """What a holder gets whose lease has ended: the error's code."""
    try:
        with database.transaction():
            database.execute("SELECT leasehold.hold(%s, %s)", ("reports/daily", fence))
    except psycopg.Error as error:
        return error.sqlstate
    return None
