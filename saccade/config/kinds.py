"""Tables that come in several kinds, chosen by their key `kind`, and kinds that users bring themselves."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NotRequired, Required, TypeGuard, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from saccade.config.plugins import Kinds, Source, format_failure
from saccade.config.table import (
    JoinTraits,
    ObjectiveTraits,
    PositionTraits,
    ReaderTraits,
    ScoreTraits,
    StackTraits,
    Table,
    WriterTraits,
)
from saccade.errors import SaccadeError

TRAITS = (ReaderTraits, WriterTraits, StackTraits, PositionTraits, JoinTraits, ScoreTraits, ObjectiveTraits)
TAG_PREFIX = "#"  # distinguishes tags of kinds from keys in the location of a pydantic error


class OwnKind(BaseModel):
    """A table of a kind that the user brings: its class or function, and settings that are its keyword-only arguments.

    A table that inherits from this and from a table of saccade has the keys of both.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    is_custom: ClassVar[bool] = True
    kind: str
    _maker: Any = PrivateAttr(default=None)  # the class or function itself
    _source: Source = PrivateAttr(default=Source(""))

    @model_validator(mode="wrap")
    @classmethod
    def _pass_tables(cls, value: Any, validate: ModelWrapValidatorHandler[OwnKind]) -> Any:
        """A table of a plugin takes the place of this one."""
        return value if isinstance(value, BaseModel) else validate(value)

    @model_validator(mode="before")
    @classmethod
    def _check_against_signature(cls, value: Any, info: ValidationInfo) -> Any:
        """Validate the settings against the signature, so that unknown ones are errors here too."""
        if not isinstance(value, dict):
            return value
        maker = get_user_kinds(info).find(value["kind"])
        given = {key: item for key, item in value.items() if key not in cls.model_fields}
        settings = TypeAdapter(build_signature_type(maker)).validate_python(given)
        shared = {key: item for key, item in value.items() if key in cls.model_fields}
        return {**shared, **get_signature_defaults(maker), **settings}

    @classmethod
    def accepts(cls, maker: Any) -> bool:
        """Whether this table is for such a class or function, where a key may have several."""
        return True

    def model_post_init(self, context: Any) -> None:
        if context:
            self._maker = context["kinds"].find(self.kind)
            self._source = context["kinds"].used[self.kind]

    def make(self, *arguments: Any) -> Any:
        """Call the class or function of this kind with these arguments and the settings of the recipe.

        What it raises becomes a SaccadeError with the line of the user's code.
        """
        try:
            return self._maker(*arguments, **self.settings())
        except SaccadeError:
            raise
        except Exception as error:
            file = inspect.getsourcefile(inspect.unwrap(self._maker)) or ""
            raise SaccadeError(
                f"the kind '{self.kind}' cannot be built: {format_failure(error, Path(file))}"
            ) from error

    @property
    def maker(self) -> Any:
        """The class or function of this kind."""
        return self._maker

    @property
    def fingerprint(self) -> str:
        """Identifies its code and settings in keys of the cache: by the plugin's hash, or that of its source code."""
        return f"{self.kind} {sorted(self.settings().items())} {self._source.hash_code(self._maker)}"

    @property
    def is_capturable(self) -> bool:
        """Whether it declares that a CUDA graph can hold it: nothing in it synchronizes with the device."""
        return bool(getattr(self._maker, "capturable", False))

    def settings(self) -> dict[str, Any]:
        """The keyword arguments for the class or function of this kind."""
        return dict(self.model_extra or {})


class Custom(
    OwnKind, ReaderTraits, WriterTraits, StackTraits, PositionTraits, JoinTraits, ScoreTraits, ObjectiveTraits
):
    """A reader, writer, stack, objective, ... of the user's own, with no other keys than its settings."""

    label_kind: ClassVar[str] = "label"  # as a writer of the task "classify"

    @property
    def init_run(self) -> str:
        return ""

    def without_init(self) -> Custom:
        return self

    def has_kind_of(self, other: Any) -> bool:
        return bool(self.kind == other.kind)

    @property
    def width(self) -> int | None:
        """Width of a stack: its setting `dim`, where it has one."""
        return self.settings().get("dim")

    @property
    def attends_before_step(self) -> bool:
        """Of a score: the attribute of this name of the class or function."""
        return bool(getattr(self._maker, "attends_before_step", False))

    def to_trained_form(self) -> Custom:
        return self


class ByKind:
    """Marks a union of tables whose key `kind` chooses one: the first one without the key, an `OwnKind` for others."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        tables = [table for table in get_args(source) if not issubclass(table, OwnKind)]
        owns = [table for table in get_args(source) if issubclass(table, OwnKind)] or [Custom]
        names = {name: table for table in tables for name in get_kind_names(table)}
        default = next(iter(names))
        trait = next((trait for trait in TRAITS if issubclass(names[default], trait)), BaseModel)

        def suits(kind: Any) -> bool:
            return trait is not BaseModel and issubclass(kind, trait) if is_table_class(kind) else callable(kind)

        def check(value: Any, info: ValidationInfo) -> Any:
            kind = get_kind(value, default)
            others = get_user_kinds(info)
            if kind in names and kind in others:
                others.shadowed.add(kind)
            if kind in names or isinstance(value, BaseModel):
                return value
            maker = others.find(kind)
            if not suits(maker):
                known = [*names, *(name for name in others.list_names() if suits(others.peek(name)))]
                hint = format_unknown_kind(kind, known, others) if maker is None else format_wrong_kind(kind, others)
                message = f"unknown kind '{kind}'{hint}"
                raise PydanticCustomError("kind", "{message}", {"message": message})
            table = maker if is_table_class(maker) else next(own for own in owns if own.accepts(maker))
            return table.model_validate(value, context=info.context)

        def choose(value: Any) -> str:
            kind = get_kind(value, default)
            own = type(value) if isinstance(value, OwnKind) else owns[-1]  # which lets a table of a plugin pass
            return TAG_PREFIX + (get_kind_name(names[kind]) if kind in names else own.__name__)

        options = [Annotated[table, Tag(TAG_PREFIX + get_kind_name(table))] for table in tables]
        options += [Annotated[own, Tag(TAG_PREFIX + own.__name__)] for own in owns]
        schema = handler.generate_schema(
            Annotated[Union[tuple(options)], Discriminator(choose), BeforeValidator(check)]  # noqa: UP007
        )
        # A table of a plugin is none of the options, and has its own keys.
        as_it_is = core_schema.wrap_serializer_function_ser_schema(
            lambda value, serialize: serialize(value), schema=core_schema.any_schema()
        )
        return {**schema, "serialization": as_it_is}


def is_table_class(kind: Any) -> TypeGuard[type[Table]]:
    """Whether a kind is a table of a recipe itself, and not a class or function that makes a part."""
    return isinstance(kind, type) and issubclass(kind, Table)


def list_custom_kinds(table: Any) -> list[str]:
    """Kinds of the user's own in a table of a recipe and in the tables inside it."""
    if isinstance(table, OwnKind):
        return [table.kind]
    inner = vars(table).values() if isinstance(table, BaseModel) else ()
    return [kind for value in inner for kind in list_custom_kinds(value)]


def list_tables(hint: Any) -> list[type[BaseModel]]:
    """All tables that a type hint mentions."""
    if isinstance(hint, type) and get_origin(hint) is None:
        return [hint] if issubclass(hint, BaseModel) else []
    inner = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    return [table for part in inner for table in list_tables(part)]


def get_kind_name(table: type[BaseModel]) -> str:
    """The name by which recipes choose this table; the first one of a table for several kinds."""
    return get_kind_names(table)[0]


def get_kind_names(table: type[BaseModel]) -> list[str]:
    """All values of the key `kind` that choose this table."""
    return [str(name) for name in get_args(table.model_fields["kind"].annotation)]


def get_kind(value: Any, default: str) -> str:
    if isinstance(value, BaseModel):
        value = {"kind": value.__dict__.get("kind")}
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "expected a table")
    kind = value.get("kind", default)
    if not isinstance(kind, str):
        raise PydanticCustomError("kind", "{message}", {"message": f"kind must be text, got {kind!r}"})
    return kind


def get_user_kinds(info: ValidationInfo) -> Kinds:
    found: Kinds | None = (info.context or {}).get("kinds")
    return Kinds() if found is None else found


def build_signature_type(maker: Any) -> Any:
    """The keyword-only arguments of `maker` as a type that pydantic can validate."""
    keys: dict[str, Any] = {}
    for name, parameter in get_keyword_only(maker).items():
        hint = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        keys[name] = Required[hint] if parameter.default is inspect.Parameter.empty else NotRequired[hint]
    make: Any = TypedDict  # mypy wants literal keys of a TypedDict; these come from a signature
    table = make("table", keys)
    table.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return table


def get_signature_defaults(maker: Any) -> dict[str, Any]:
    """The defaults that TOML can express; any other default is left to `maker` itself."""
    plain = (str, int, float, bool, list, tuple, dict)
    defaults = {name: parameter.default for name, parameter in get_keyword_only(maker).items()}
    return {name: value for name, value in defaults.items() if isinstance(value, plain)}


def get_keyword_only(maker: Any) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(maker, eval_str=True).parameters
    return {name: item for name, item in parameters.items() if item.kind is inspect.Parameter.KEYWORD_ONLY}


def format_wrong_kind(kind: str, kinds: Kinds) -> str:
    """What follows a message about a kind that is not for this key."""
    found, origin = kinds.peek(kind), kinds.used[kind].plugin or "kinds="
    what = "a table for another key" if is_table_class(found) else f"of type {type(found).__name__}"
    return f" here: that of {origin} is {what}; expected a class or function for this key"


def format_unknown_kind(kind: str, names: Iterable[str], kinds: Kinds) -> str:
    """What follows a message about an unknown kind: the closest known one, or how to bring one's own."""
    hint = format_suggestion("kinds", kind, names)
    own = "" if "did you mean" in hint else f"; your own: --plugin FILE.py, or kinds={{'{kind}': ...}} in Python"
    return hint + own + kinds.describe_failures()


def format_suggestion(what: str, got: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'? (kinds: x, y)`: the closest of `names`, and all of them."""
    known = list(names)
    near = difflib.get_close_matches(got, known, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{hint} ({what}: {', '.join(known)})" if hint else f"; {what}: {', '.join(known)}"
