"""`python -m benchmarks [NAME …]`: prints side-by-side tables for the budgets of the design."""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections.abc import Callable
from pathlib import Path

import orjson

from benchmarks import (
    batch,
    job_store,
    jobs,
    llamacpp,
    logits,
    metrics,
    mixed,
    n_batch,
    rkllm,
    threads,
    wire,
)
from benchmarks.machine import describe
from benchmarks.measure import Table
from benchmarks.options import Options, print_progress
from benchmarks.render import as_json, markdown, show

BENCHMARKS: dict[str, Callable[[Options], list[Table]]] = {
    each.NAME: each.run
    for each in (
        *(wire, rkllm, logits, n_batch, jobs, job_store, mixed, metrics, batch, llamacpp),
        threads,
    )
}
# The outermost timeout; each wait has a shorter one.
_LIMIT_S = 7200


def main() -> int:
    """Run the named benchmarks, all by default; return 1 if one of them failed."""
    args = _arguments()
    options = Options(pairs=args.pairs or (3 if args.quick else 10), quick=args.quick)
    tables: list[tuple[str, Table]] = []
    failed = False
    for name in args.names or BENCHMARKS:
        machine = describe()
        faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
        try:
            new_tables = BENCHMARKS[name](options)
        except Exception as error:
            # Continue with the other benchmarks.
            print_progress(f"{name}: failed: {type(error).__name__}: {error}")
            failed = True
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        for table in new_tables:
            tables.append((machine, table))
            if args.markdown:
                print(markdown(table, machine), flush=True)
            else:
                show(table, machine)
    if args.json is not None:
        values = [{"machine": machine} | as_json(table) for machine, table in tables]
        args.json.write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n")
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--pairs", type=int, help="number of pairs of measurements per row (10)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all figures to a file"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument(
        "--quick", action="store_true", help="short runs whose figures are not meaningful"
    )
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}: {', '.join(BENCHMARKS)}")
    if args.pairs is not None and args.pairs < 1:
        parser.error("--pairs must be at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main())
