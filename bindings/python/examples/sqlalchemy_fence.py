"""SQLAlchemy: the transaction shows its fencing token first, and a stale holder is refused.

The locks may be in any store. The database keeps the highest fence it has seen.
"""

import leasehold
from leasehold import fencing
from leasehold.fencing import postgresql
from sqlalchemy import Connection, Engine, text


def make(engine: Engine) -> None:
    """Once: the table of fence records."""
    with engine.begin() as connection:
        connection.exec_driver_sql(postgresql.SCHEMA)


def next_number(connection: Connection, fence: int) -> int:
    """In a transaction at the level READ COMMITTED."""
    values = {"resource": "numbers", "fence": fence}
    fencing.passed(connection.exec_driver_sql(postgresql.TOUCH, values).rowcount, fence)
    query = text("UPDATE numbers SET next = next + 1 RETURNING next")
    return int(connection.execute(query).scalar_one())


def take_number(client: leasehold.Client, engine: Engine) -> int:
    with client.mutex("numbers").lock(timeout=5) as guard, engine.begin() as connection:
        return next_number(connection, guard.fence)
