"""What has to be done so that the server is as the manifest says: wanted and existing in, steps out, no I/O.

A dry run prints this plan; a real run carries out the very same one (mesh.md A5.11). The database's own rules, and
which statement makes a step true on which PostgreSQL, are in ``ensure.py`` and ``remove.py``.
"""

from collections.abc import Collection, Mapping
from typing import Literal

from attrs import frozen

from provisioner.grants import mark
from provisioner.grants.catalogue import Catalogue, Database, Role, keeper
from provisioner.grants.manifest import Consumer, Identity, Manifest, Refused
from provisioner.grants.steps import (
    DATABASE_PARTS,
    CreateDatabase,
    CreateGroup,
    CreateLogin,
    DropInvalid,
    Extend,
    Hold,
    Join,
    Reclaim,
    Return,
    SetLogin,
    SettleDatabase,
    Share,
    Step,
    WriteMark,
)

OnRevoke = Literal["retain", "drop"]
QUIET_SECONDS = 0.25
"""Between two looks for sessions: one that waited for a lock when NOLOGIN was committed still gets in afterwards."""


@frozen
class Policy:
    """The operator's choices.

    Attributes:
        on_revoke: whether a departed consumer's data is kept or dropped.
        extensions: the extensions that consumers may ask for.
        max_remove: remove nothing when more than this would go; None for no bound.
        quiet_seconds: between two looks for sessions of who is revoked.
    """

    on_revoke: OnRevoke = "retain"
    extensions: frozenset[str] = frozenset()
    max_remove: int | None = None
    quiet_seconds: float = QUIET_SECONDS


@frozen
class Service:
    """What is done for one consumer, or why nothing is."""

    consumer: Consumer
    steps: tuple[Step, ...] = ()
    why: str | None = None

    @property
    def is_new(self) -> bool:
        """Its login doesn't exist yet."""
        return any(isinstance(step, CreateLogin) for step in self.steps)

    @property
    def drifted(self) -> bool:
        """Something other than the password has to be changed, as far as shared catalogues tell."""
        return any(
            not isinstance(step, SetLogin | Extend | Share) or step == SetLogin(drift=True) for step in self.steps
        )


@frozen
class Removal:
    """Something that this program made and nobody asks for any more.

    Attributes:
        what: a consumer's login; a role that kept data; a group of a database; a database of a login that stays.
        name: the role's name, or the database's.
        role: the role, or the database's owner.
        databases: the databases that it owns, to be kept or dropped.
        why: what stands in the way of removing it whole, known beforehand.
    """

    what: Literal["login", "kept", "group", "database"]
    name: str
    role: Role
    databases: tuple[str, ...] = ()
    why: str | None = None


@frozen
class Retained:
    """Data that stays though nobody asks for it. ``since`` is empty while its login is still in use."""

    role: str
    databases: tuple[str, ...]
    since: str = ""


@frozen
class Plan:
    """Everything one run does: services first, then removals, unless ``withheld`` says why none is made."""

    services: tuple[Service, ...]
    refused: tuple[Refused, ...]
    removals: tuple[Removal, ...]
    retained: tuple[Retained, ...]
    withheld: str | None = None


def plan(manifest: Manifest, catalogue: Catalogue, policy: Policy) -> Plan:
    """Decides everything, from what is asked for and what there is.

    Args:
        manifest: what is asked for. Consumers without a usable secret are among its refused by now.
        catalogue: what there is.
        policy: the operator's choices.
    """
    services: list[Service] = []
    owners: dict[str, Service] = {}
    for consumer in manifest.consumers:
        service = _serve(consumer, manifest, catalogue, policy, owners)
        services.append(service)
        if consumer.access == "owner":
            owners[consumer.database] = service
    removals = tuple(_removals(manifest, services, catalogue, policy))
    withheld = None
    if manifest.illegible:
        withheld = f"the manifest has entries of which it can't be told whose they are ({manifest.illegible[0]})"
    elif policy.max_remove is not None and len(removals) > policy.max_remove:
        withheld = f"{len(removals)} would be removed, and --max-remove allows {policy.max_remove}"
    return Plan(tuple(services), manifest.refused, removals, tuple(_retained(services, catalogue, policy)), withheld)


# --- for a consumer --------------------------------------------------------------------------------------------------


class _CannotError(Exception):
    """Why a consumer can't be served."""


def _serve(
    consumer: Consumer, manifest: Manifest, catalogue: Catalogue, policy: Policy, owners: Mapping[str, Service]
) -> Service:
    try:
        steps = _login(consumer, catalogue)
        if consumer.access == "owner":
            steps += _own(consumer, catalogue, policy)
        else:
            steps += _visit(consumer, manifest, catalogue, owners)
    except _CannotError as error:
        return Service(consumer, why=str(error))
    return Service(consumer, tuple(steps))


def _login(consumer: Consumer, catalogue: Catalogue) -> list[Step]:
    role = catalogue.roles.get(consumer.login)
    kept = keeper(catalogue, consumer.node, consumer.module)
    if kept is not None:
        _check(kept, mark.Kept, catalogue)
    steps: list[Step] = []
    if role is None and kept is None:
        return [CreateLogin()]
    if role is None:
        assert kept is not None
        if not kept.held:
            steps.append(Hold(kept.name))
        return [*steps, Return(kept.name), SetLogin(drift=True)]
    _check(role, mark.Login, catalogue)
    if not role.held:
        steps.append(Hold(role.name))
    steps.append(SetLogin(drift=role.limited or not role.login))
    if role.stale:
        steps.append(WriteMark())
    if kept is not None:
        if not kept.held:
            steps.append(Hold(kept.name))
        steps.append(Reclaim(kept.name))
    return steps


def _check(role: Role, kind: type[mark.Mark], catalogue: Catalogue) -> None:
    """Whether a role is ours to use; if not, says what an operator should do."""
    if not role.is_marked or not isinstance(role.mark, kind):
        raise _CannotError(f"a role called {role.name} exists and this provisioner did not make it")
    if fault := hindrance(role, catalogue):
        raise _CannotError(fault)


def hindrance(role: Role, catalogue: Catalogue) -> str | None:
    """What keeps us from doing all that is needed with a role that we made, or None."""
    if role.powers:
        powers = ", ".join(role.powers)
        return f"the role {role.name} was given {powers} by another hand: an operator must take it away again"
    if not role.administered:
        name, user = (each.replace('"', '""') for each in (role.name, catalogue.server.user))
        return (
            f"the role {role.name} is not in {catalogue.server.user}'s hands: "
            f'a superuser must run GRANT "{name}" TO "{user}" WITH ADMIN OPTION'
        )
    return None


def _own(consumer: Consumer, catalogue: Catalogue, policy: Policy) -> list[Step]:
    if barred := [each for each in consumer.extensions if each not in policy.extensions]:
        raise _CannotError(f"asks for the extension {barred[0]!r}, which --extensions doesn't allow")
    name = consumer.database
    database = catalogue.databases.get(name)
    steps: list[Step] = []
    if database is not None:
        owner = catalogue.owner_of(database)
        mine = {consumer.login, mark.Kept(consumer.node, consumer.module, "").role}
        if owner is None or not owner.is_ours:
            raise _CannotError(f"a database called {name} exists and this provisioner did not make it")
        if owner.name not in mine:
            raise _CannotError(f"the database {name} belongs to {owner.name}")
        if database.invalid:
            steps.append(DropInvalid(name))
            database = None
    if database is None:
        steps += [CreateDatabase(name), SettleDatabase(name, ("comment", "close", "admit", "open"))]
    elif parts := _parts(database):
        steps.append(SettleDatabase(name, parts))
    if consumer.extensions:
        steps.append(Extend(name, consumer.extensions))
    if leave := _memberships(consumer, catalogue):
        steps.append(Join(None, leave))
    return steps


def _parts(database: Database) -> tuple[str, ...]:
    wrong = {
        "comment": not database.commented,
        "close": database.public,
        "admit": not database.owner_may_enter,
        "template": database.template,
        "open": not database.open,
    }
    return tuple(part for part in DATABASE_PARTS if wrong[part])


def _memberships(consumer: Consumer, catalogue: Catalogue, *, but: str | None = None) -> tuple[str, ...]:
    return tuple(group for group in catalogue.groups_of.get(consumer.login, ()) if group != but)


def _visit(consumer: Consumer, manifest: Manifest, catalogue: Catalogue, owners: Mapping[str, Service]) -> list[Step]:
    """Access to another consumer's database, through one of its two groups."""
    name = consumer.database
    host = owners.get(name)
    database = catalogue.databases.get(name)
    owner = None if database is None else catalogue.owner_of(database)
    exists = owner is not None and owner.is_ours and isinstance(owner.mark, mark.Login)
    if host is None:
        match owner:
            case Role(is_ours=True, mark=mark.Login(node, module)) if (node, module) in manifest.asked:
                pass
            case _:
                raise _CannotError(f"no consumer of the manifest owns a database called {name}")
    elif host.why is not None and not exists:
        raise _CannotError(f"the database {name} can't be made: {host.why}")
    steps: list[Step] = []
    for group in (mark.Group(name, kind) for kind in mark.GROUPS):
        role = catalogue.roles.get(group.role)
        if role is None:
            steps.append(CreateGroup(group))
            continue
        _check(role, mark.Group, catalogue)
        if not role.held:
            steps.append(Hold(role.name))
    wanted = mark.Group(name, "ro" if consumer.access == "readonly" else "rw").role
    leave = _memberships(consumer, catalogue, but=wanted)
    steps.append(Share(name))
    if leave or (wanted, consumer.login) not in catalogue.members:
        steps.append(Join(wanted, leave))
    return steps


# --- what goes and what stays ----------------------------------------------------------------------------------------


def _removals(manifest: Manifest, services: list[Service], catalogue: Catalogue, policy: Policy) -> list[Removal]:
    asked = manifest.asked
    shared = {consumer.database for consumer in manifest.consumers if consumer.access != "owner"}
    unknown = bool(manifest.refused)
    found: list[Removal] = []
    for role, label in catalogue.marked():
        databases = _usable(role, catalogue)
        why = hindrance(role, catalogue)
        match label:
            case mark.Login(node, module) if (node, module) not in asked:
                found.append(Removal("login", role.name, role, databases, why))
            case mark.Kept(node, module) if (node, module) not in asked:
                # Beside its login it may own nothing yet: a run was cut off while it was to get everything.
                idle = not role.owns and mark.Login(node, module).role not in catalogue.roles
                if policy.on_revoke == "drop" or role.powers or idle:
                    found.append(Removal("kept", role.name, role, databases, why))
            case mark.Group(database) if database not in shared and not unknown:
                found.append(Removal("group", role.name, role, (database,), why))
            case _:
                pass
    for service in services:
        owner = catalogue.roles.get(service.consumer.login)
        if policy.on_revoke == "drop" and service.why is None and owner is not None:
            found += [Removal("database", each, owner, (each,)) for each in _unasked(service, owner, catalogue)]
    found += _half_dropped(asked, services, catalogue)
    order = {"database": 0, "login": 1, "kept": 2, "group": 3}
    return sorted(found, key=lambda each: (order[each.what], each.name))


def _usable(role: Role, catalogue: Catalogue) -> tuple[str, ...]:
    return tuple(each.name for each in catalogue.owned.get(role.oid, ()) if not each.invalid)


def _half_dropped(asked: Collection[Identity], services: list[Service], catalogue: Catalogue) -> list[Removal]:
    """What remains of databases whose dropping was cut off: whatever the policy, they can only be dropped to the end.

    Not those that a consumer gets anew in this run, nor those of one that can't be served now.
    """
    served = {each.consumer.identity: each.consumer.database for each in services if each.why is None}
    found: list[Removal] = []
    for role, label in catalogue.marked():
        if isinstance(label, mark.Group):
            continue
        identity = (label.node, label.module)
        if identity in served or identity not in asked:
            gone = (each.name for each in catalogue.owned.get(role.oid, ()) if each.invalid)
            found += [Removal("database", each, role, (each,)) for each in gone if each != served.get(identity)]
    return found


def _unasked(service: Service, role: Role, catalogue: Catalogue) -> list[str]:
    """Databases that a login owns and its consumer asks for no more."""
    wanted = service.consumer.database if service.consumer.access == "owner" else None
    return [each for each in _usable(role, catalogue) if each != wanted]


def _retained(services: list[Service], catalogue: Catalogue, policy: Policy) -> list[Retained]:
    if policy.on_revoke == "drop":
        return []
    back = {step.kept for service in services for step in service.steps if isinstance(step, Return | Reclaim)}
    found: list[Retained] = []
    for role, label in catalogue.marked():
        if isinstance(label, mark.Kept) and role.owns and role.name not in back:
            found.append(Retained(role.name, _usable(role, catalogue), label.since))
    for service in services:
        role_now = catalogue.roles.get(service.consumer.login)
        if service.why is None and role_now is not None and (names := _unasked(service, role_now, catalogue)):
            found.append(Retained(role_now.name, tuple(names)))
    return found
