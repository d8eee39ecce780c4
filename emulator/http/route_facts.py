"""Facts about a route besides its path: written where the route is mounted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import Scope

from emulator.http.error_format import ErrorFormat
from handler.apis.core.wire_format import WireFormat
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.wire_format import FORMATS

# The key of an ASGI scope that has the RequestRoute of the request.
SCOPE_KEY = "emulator.route"
# The key of an ASGI scope that is True if the request of an open path may see the state only: it
# has no valid key, or a foreign page sent it.
DETAILS_HIDDEN = "details_hidden"

# Answers the requests of a route.
RouteHandler = Callable[[Request], Coroutine[Any, Any, Any]]


class RouteGroup(Enum):
    """The API that a route belongs to."""

    PUBLIC = "public"
    CLIENT = "client"
    OPENAI = "openai"
    WORKER = "worker"


class Access(Enum):
    """Who may request a route if the server has API keys."""

    KEY = "requests with a key"
    NO_KEY = "requests without a key as well, except those of foreign pages"
    EVERYONE = "every request; those without a key and of foreign pages see no details"
    SIGNATURE = "requests with a signature, which the route checks, from whatever page they come"


class RequestLog(Enum):
    """The level at which a route's requests are logged."""

    ALWAYS = "INFO, or WARNING from status 500"
    # Clients and workers repeat these requests while a job runs, and the console lists the workers
    # every two seconds. The log has lines for the start and the end of jobs and workers anyway.
    FAILURES = "the same, but DEBUG if the request succeeds"
    DEBUG = "DEBUG, whatever the status"


class OperationName(StrEnum):
    """The names under which requests are counted and traced, and which fault rules select."""

    RUN = "run"
    RUNSYNC = "runsync"
    STATUS = "status"
    STATUS_SYNC = "status-sync"
    STREAM = "stream"
    CANCEL = "cancel"
    RETRY = "retry"
    PURGE_QUEUE = "purge-queue"
    RESET = "reset"
    REQUESTS = "requests"
    WORKERS = "workers"
    HEALTH = "health"
    DOCS = "docs"
    OPENAPI = "openapi.json"
    METRICS = "metrics"
    CONSOLE = "console"
    FAULTS = "faults"
    JOB_TAKE = "job-take"
    JOB_TAKE_BATCH = "job-take-batch"
    JOB_STOP = "job-stop"
    JOB_STREAM = "job-stream"
    JOB_DONE = "job-done"
    PING = "ping"
    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    MODELS = "models"
    FILES = "files"
    BATCHES = "batches"
    BUCKET = "bucket"
    MESSAGES = "messages"
    RESPONSES = "responses"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    TOKENIZER_INFO = "tokenizer_info"
    SYSTEM = "system"
    GENERATE = "generate"
    EMBED = "embed"
    PULL = "pull"
    TAGS = "tags"
    PS = "ps"
    SHOW = "show"
    VERSION = "version"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFacts:
    """The facts about a route.

    - `operation`: None if the path says it, because the route forwards any path.
    - `error_format`: the form of its errors, and `wire_format` that of its streams.
    - `rate_limit`: the entry of RunPod's rate limits that its requests are counted under.
    - `starts_work`: a POST request gets 503 while the server drains.
    - `takes_jobs`, `sends_output`: a worker's requests that lease jobs, and those with output.
    - `allows_faults`: `x-fault` and fault rules apply to it, if a client may request it.
    """

    group: RouteGroup
    operation: OperationName | None
    error_format: ErrorFormat = ErrorFormat.OPENAI
    access: Access = Access.KEY
    rate_limit: str | None = None
    starts_work: bool = False
    takes_jobs: bool = False
    sends_output: bool = False
    allows_faults: bool = True
    log: RequestLog = RequestLog.ALWAYS
    wire_format: WireFormat = FORMATS[OPENAI]


def openai_facts(operation: OperationName | None, **rest: Any) -> RouteFacts:
    """Return the facts of a route that calls a model, or that belongs to such an API."""
    values = {"rate_limit": "openai", "starts_work": True, **rest}
    return RouteFacts(group=RouteGroup.OPENAI, operation=operation, **values)


def public_facts(operation: OperationName) -> RouteFacts:
    """Return the facts of a page that everyone may see."""
    return RouteFacts(
        group=RouteGroup.PUBLIC,
        operation=operation,
        access=Access.EVERYONE,
        log=RequestLog.DEBUG,
    )


@dataclass(slots=True)
class RequestRoute:
    """The route of one request, and the facts about it.

    A path that names no endpoint has no `endpoint`: then it is the server's default endpoint.
    There is no `route` if no route has the path; the facts are then those of the most similar
    routes.
    """

    path: str
    facts: RouteFacts
    operation: OperationName
    endpoint: str | None
    route: ApiRoute | None

    @property
    def is_client(self) -> bool:
        """Whether the request is one of a client of a job or model API."""
        return self.facts.group in (RouteGroup.CLIENT, RouteGroup.OPENAI)

    @property
    def is_worker(self) -> bool:
        """Whether the request is one of a worker."""
        return self.facts.group is RouteGroup.WORKER


def read_route(scope: Scope) -> RequestRoute:
    """Return the route of a request, which RouteLookupMiddleware has found."""
    request_route: RequestRoute = scope[SCOPE_KEY]
    return request_route


class ApiRoute(Route):
    """A route with its facts. It answers only requests for which the RouteTable has found it.

    So the route that serves a request is always the one whose facts were checked before.
    """

    def __init__(
        self,
        path: str,
        endpoint: RouteHandler,
        *,
        methods: Sequence[str],
        facts: RouteFacts,
        middleware: Sequence[Middleware] | None = None,
    ) -> None:
        super().__init__(path, endpoint, methods=methods, middleware=middleware)
        self.methods: set[str] = self.methods or set()
        self.facts = facts

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request, and its path parameters."""
        chosen: RequestRoute | None = scope.get(SCOPE_KEY)
        # The path differs while the router tries to redirect to it, with or without the last slash.
        if chosen is not None and chosen.route is not self and chosen.path == scope["path"]:
            return Match.NONE, {}
        return super().matches(scope)

    def fits(self, path: str) -> bool:
        """Return whether the route has a path."""
        return self.path_regex.match(path) is not None
