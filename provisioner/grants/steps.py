"""What can be done for one consumer: the words of a plan, in the order in which they are carried out. Pure data."""

from attrs import frozen

from provisioner.grants import mark

DATABASE_PARTS = ("comment", "close", "admit", "template", "open")
"""What can be put right about a database, in the order in which it is done (postgres-versions 10)."""


@frozen
class Return:
    """The consumer is back: the role that kept its data is its login again."""

    kept: str

    def __str__(self) -> str:
        return f"give back what {self.kept} keeps"


@frozen
class CreateLogin:
    """Make the login, its mark and our hold on it, in one transaction, with the password."""

    def __str__(self) -> str:
        return "create the login"


@frozen
class Hold:
    """Take the membership that lets us act for a role of ours: an upgrade or an operator has changed it."""

    role: str

    def __str__(self) -> str:
        return f"take membership of {self.role}"


@frozen
class SetLogin:
    """Set the password, and LOGIN with all attributes; on every run. ``drift``: something else than it was wrong."""

    drift: bool = False

    def __str__(self) -> str:
        return "enable the login and set its password" if self.drift else "set the password"


@frozen
class WriteMark:
    """Write the login's mark again."""

    def __str__(self) -> str:
        return "write its mark again"


@frozen
class Reclaim:
    """Both the login and the role that kept its data exist: give the data back, then drop that role."""

    kept: str

    def __str__(self) -> str:
        return f"take over what {self.kept} owns"


@frozen
class DropInvalid:
    """Drop a database whose dropping was interrupted: it can't be used for anything else."""

    database: str

    def __str__(self) -> str:
        return f"drop the half dropped database {self.database}"


@frozen
class CreateDatabase:
    """Make the database, owned by the login and closed; the next step opens it."""

    database: str

    def __str__(self) -> str:
        return f"create the database {self.database}"


@frozen
class SettleDatabase:
    """Put right those ``DATABASE_PARTS`` of a database that aren't."""

    database: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"put right the database {self.database} ({', '.join(self.parts)})"


@frozen
class Extend:
    """See to it that the database has these extensions."""

    database: str
    extensions: tuple[str, ...]

    def __str__(self) -> str:
        return f"see to extensions of {self.database} ({', '.join(self.extensions)})"


@frozen
class CreateGroup:
    """Make a group role of a database."""

    group: mark.Group

    def __str__(self) -> str:
        return f"create the group {self.group.role}"


@frozen
class Share:
    """Give both groups of a database their access to what is in it, now and later."""

    database: str

    def __str__(self) -> str:
        return f"see to the groups' access to what is in {self.database}"


@frozen
class Join:
    """Make the login a member of one group, and of no other."""

    group: str | None
    leave: tuple[str, ...] = ()

    def __str__(self) -> str:
        joined = [] if self.group is None else [f"join {self.group}"]
        return ", ".join([*joined, *(f"leave {each}" for each in self.leave)])


Step = (
    Return
    | CreateLogin
    | Hold
    | SetLogin
    | WriteMark
    | Reclaim
    | DropInvalid
    | CreateDatabase
    | SettleDatabase
    | Extend
    | CreateGroup
    | Share
    | Join
)
