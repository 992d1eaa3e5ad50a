"""Tables that come in several kinds, chosen by their key `kind`, and kinds that users bring themselves."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, NotRequired, Required, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    PrivateAttr,
    Tag,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from saccade.config.plugins import Kinds
from saccade.config.table import (
    JoinTraits,
    ObjectiveTraits,
    PositionTraits,
    ReaderTraits,
    ScoreTraits,
    StackTraits,
    WriterTraits,
)

TAG_PREFIX = "#"  # distinguishes tags of kinds from keys in the location of a pydantic error


class Custom(
    BaseModel, ReaderTraits, WriterTraits, StackTraits, PositionTraits, JoinTraits, ScoreTraits, ObjectiveTraits
):
    """A kind that the user brings; its settings are the keyword-only arguments of its class or function."""

    model_config = ConfigDict(frozen=True, extra="allow")
    is_custom: ClassVar[bool] = True
    label_kind: ClassVar[str] = "label"  # as a writer of the task "classify"
    kind: str
    _maker: Any = PrivateAttr(default=None)  # the class or function itself

    @model_validator(mode="before")
    @classmethod
    def _check_against_signature(cls, value: Any, info: ValidationInfo) -> Any:
        """Validate the settings against the signature, so that unknown ones are errors here too."""
        if isinstance(value, Custom):
            return value
        maker = get_user_kinds(info).find(value["kind"])
        given = {key: item for key, item in value.items() if key != "kind"}
        settings = TypeAdapter(build_signature_type(maker)).validate_python(given)
        return {"kind": value["kind"], **get_signature_defaults(maker), **settings}

    def model_post_init(self, context: Any) -> None:
        if context:
            self._maker = context["kinds"].find(self.kind)

    def make(self, *arguments: Any) -> Any:
        """Call the class or function of this kind with these arguments and the settings of the recipe."""
        return self._maker(*arguments, **self.settings())

    @property
    def maker(self) -> Any:
        """The class or function of this kind."""
        return self._maker

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

    def settings(self) -> dict[str, Any]:
        """The keyword arguments for the class or function of this kind."""
        return dict(self.model_extra or {})


class ByKind:
    """Marks a union of tables whose key `kind` chooses one; the first one without the key."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = {get_kind_name(table): table for table in get_args(source) if table is not Custom}
        default = next(iter(names))

        def check(value: Any, info: ValidationInfo) -> Any:
            kind = get_kind(value, default)
            others = get_user_kinds(info)
            if kind in names and kind in others:
                message = f"'{kind}' is a kind of saccade already; give yours another name"
                raise PydanticCustomError("kind", "{message}", {"message": message})
            if kind not in names and not isinstance(value, Custom) and others.find(kind) is None:
                message = f"unknown kind '{kind}'" + format_unknown_kind(kind, names, others)
                raise PydanticCustomError("kind", "{message}", {"message": message})
            return value

        def choose(value: Any) -> str:
            kind = get_kind(value, default)
            return TAG_PREFIX + (kind if kind in names else "")

        options = [Annotated[table, Tag(TAG_PREFIX + name)] for name, table in names.items()]
        options.append(Annotated[Custom, Tag(TAG_PREFIX)])
        return handler.generate_schema(
            Annotated[Union[tuple(options)], Discriminator(choose), BeforeValidator(check)]  # noqa: UP007
        )


def list_custom_kinds(table: Any) -> list[str]:
    """Kinds of the user's own in a table of a recipe and in the tables inside it."""
    if isinstance(table, Custom):
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
    """The name by which recipes choose this table."""
    return str(get_args(table.model_fields["kind"].annotation)[0])


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
    found: Kinds = (info.context or {}).get("kinds") or Kinds()
    return found


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


def format_unknown_kind(kind: str, names: Iterable[str], kinds: Kinds) -> str:
    """What follows a message about an unknown kind: the closest known one, or how to bring one's own."""
    hint = format_suggestion("kinds", kind, [*names, *kinds.list_names()])
    own = "" if "did you mean" in hint else f"; your own: --plugin FILE.py, or kinds={{'{kind}': ...}} in Python"
    return hint + own + kinds.describe_failures()


def format_suggestion(what: str, got: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'? (kinds: x, y)`: the closest of `names`, and all of them."""
    known = list(names)
    near = difflib.get_close_matches(got, known, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{hint} ({what}: {', '.join(known)})" if hint else f"; {what}: {', '.join(known)}"
