"""`python -m emulator`: the local server."""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    # The working folder comes first on the path, and a handler.py in it would hide our package.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.argument_parser import Parser

_EXAMPLES = """\
examples:
  %(prog)s                              the embedded model on http://127.0.0.1:8000
  %(prog)s --port 8001 --db jobs.sqlite3
  %(prog)s --handler ./handler.py       your RunPod handler instead of a model
  %(prog)s --handler a=./a --handler b=./b    two handlers, which may call each other
  %(prog)s --image my-worker:latest     your Docker image, as RunPod runs it
  %(prog)s --build .                    the same, built from the Dockerfile of this folder
  %(prog)s --workers 2 --worker-command "python my_handler.py"
  {command} test ./handler.py            run its tests.json: see {command} test --help
  {command} torture --client CMD         judge a client: see {command} torture --help
  {command} reset                        empty the queue and results of a running server

Options override the environment variables HOST, PORT, JOB_DB, HANDLER_FILE, WORKER_PYTHON,
WORKER_IMAGE, WORKER_BUILD, WORKER_GPUS, VOLUME_DIR, RELOAD, WORKERS and WORKER_COMMAND. Other
settings are environment variables, such as MODEL_PATH and API_KEYS: see docs/settings.md."""


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m emulator") -> int:
    """Serve until SIGINT or SIGTERM, finish the running jobs and return 0.

    Returns 1 if the server has shut itself down because its engine is dead.

    `argv` defaults to sys.argv[1:]; `prog` is the command's name in usage messages.
    """
    # Imports create many objects and no garbage: looking for it takes a tenth of the start.
    gc.disable()
    try:
        run = _prepare(argv, prog)
    finally:
        gc.enable()
    return run()


def _prepare(argv: Sequence[str] | None, prog: str) -> Callable[[], int]:
    """Read arguments and settings, and return what the command does with them.

    The imports are in the function, so that `--help` and a wrong argument are answered without
    them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = prog.removesuffix(" serve")
    if command == prog and arguments[:1] in (["test"], ["torture"], ["reset"]):
        name = arguments.pop(0)
        if name == "test":
            from emulator.handler_tests.command import main as run_command
        elif name == "torture":
            from emulator.torture.command import main as run_command
        else:
            from emulator.handler_tests.reset import main as run_command
        return partial(run_command, arguments, prog=f"{prog} {name}")
    parser = _build_parser(prog, command)
    options = {
        key: value for key, value in vars(parser.parse_args(arguments)).items() if value is not None
    }
    handlers: Sequence[str] = options.pop("handlers", ())
    images: Sequence[str] = options.pop("images", ())

    from common.setting_error import SettingError, exit_on_setting_error
    from emulator.settings.emulator_settings import EmulatorSettings
    from emulator.startup.preflight import check_exposure, check_files, listening_sockets
    from emulator.startup.programs import describe_programs, find_programs, warn_about_volume
    from handler.logs.configuration import configure_logging
    from handler.settings.shared_settings import read_settings

    settings = read_settings(EmulatorSettings).model_copy(update=options)
    configure_logging(settings.log_level, settings.log_format, texts=settings.log_texts)
    try:
        settings, programs = find_programs(settings, handlers, images)
        sockets = listening_sockets(settings.host, settings.port)
        if settings.ollama_port is not None:
            sockets += listening_sockets(settings.host, settings.ollama_port, "OLLAMA_PORT")
        check_exposure(settings, sockets)
        check_files(settings)

        # Imported only now, because it takes a second: a port in use is reported before that.
        from common.process_utils import raise_open_files_limit
        from common.temporary_folders import remove_abandoned
        from emulator.app import create_app
        from emulator.server.server import Server, build_uvicorn_config
        from emulator.server.start_log import log_start
        from emulator.startup.components import build_components
        from handler.settings.engine_configs import build_engine
        from handler.settings.model_settings import resolve_models

        engine = None
        if settings.has_engine:
            settings = resolve_models(settings)
            engine = build_engine(settings, grows=settings.model_pull)
        components = build_components(settings, engine, programs)
    except SettingError as error:
        exit_on_setting_error(error)
    raise_open_files_limit()
    remove_abandoned()

    def on_listening(url: str) -> None:
        slots = None if engine is None else engine.slots
        rows = describe_programs(settings, programs.values())
        log_start(settings, slots, url, list(programs), rows)
        warn_about_volume(settings, programs.values())
        components.start_workers(url)

    app = create_app(components)
    config = build_uvicorn_config(app, settings.connection_limits(), settings.host, settings.port)
    shutdown = components.graceful_shutdown

    def serve() -> int:
        Server(config, shutdown, on_listening).run(sockets)
        return int(shutdown.failure is not None)

    return serve


def _build_parser(prog: str, command: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="A local RunPod and OpenAI API.",
        epilog=_EXAMPLES.replace("{command}", command),
    )
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, help="the port to listen on (default: 8000)")
    parser.add_argument(
        "--db",
        dest="job_db",
        help="the database that jobs survive in (default: jobs.sqlite3; with --handler, a file in "
        "~/.local/state/worker-rkllm)",
    )
    parser.add_argument(
        "--handler",
        dest="handlers",
        action="append",
        metavar="[ENDPOINT=]PATH",
        help="run this RunPod handler in workers, and no model: a file or its folder; may be "
        "repeated",
    )
    parser.add_argument(
        "--image",
        dest="images",
        action="append",
        metavar="[ENDPOINT=]IMAGE",
        help="run this image's containers as workers, and no model; may be repeated",
    )
    parser.add_argument(
        "--build",
        dest="worker_build",
        type=Path,
        metavar="DIR",
        help="build the image from this folder, and again when a file in it is saved",
    )
    parser.add_argument(
        "--gpus", dest="worker_gpus", metavar="GPUS", help="the GPUs of the containers, as `all`"
    )
    parser.add_argument(
        "--python",
        dest="worker_python",
        metavar="PATH",
        help="the Python of the handler (default: its virtual environment)",
    )
    parser.add_argument(
        "--volume",
        dest="volume_dir",
        type=Path,
        metavar="DIR",
        help="the folder that the workers have as /runpod-volume",
    )
    parser.add_argument(
        "--no-reload",
        dest="reload",
        action="store_const",
        const="off",
        help="keep the workers when the code of the handler is saved",
    )
    parser.add_argument("--workers", type=_count, help="SDK workers to start, at most (default: 0)")
    parser.add_argument(
        "--worker-command", type=_command, help="what starts one (default: this project's worker)"
    )
    return parser


def _port(raw: str) -> int:
    # uvloop would take 99999 for 34463.
    port = int(raw)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("the port must be from 0 to 65535")
    return port


def _count(raw: str) -> int:
    count = int(raw)
    if not 0 <= count <= 1_000:
        raise argparse.ArgumentTypeError("the number of workers must be from 0 to 1000")
    return count


def _command(raw: str) -> str:
    shlex.split(raw)  # raises ValueError
    return raw


if __name__ == "__main__":
    sys.exit(main())
