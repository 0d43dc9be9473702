"""Plants one bug at a time in the engine and sees whether the semantic suite notices.

    python tests/mutation/run_mutants.py [--jobs 2] [NAME ...]

Each mutant of mutants.py is a copy of the package with one text replaced, imported in front of the real one. The suite
runs in one process under virtual time (FAUXRDMA_STAGES=sim,express). The package without a bug goes first, as a
control: a suite that fails anyway kills nothing. Prints one line per mutant and the share killed; exits 1 when it is
under 95 % (survivors with a reason count as what they are: survivors).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from mutants import MUTANTS, Mutant  # noqa: E402

SUITE = ("tests/semantics", "tests/ib", "tests/memory", "tests/wire", "tests/abi", "tests/hca")
NEEDED = 0.95


def mutated(mutant: Mutant, source: str) -> str:
    """The module's text with the bug in it. Raises ValueError when the place to put it is not there exactly once."""
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: its text is {count} times in {mutant.path}, must be there once")
    return source.replace(mutant.old, mutant.new)


def run(mutant: Mutant | None, timeout_s: float = 600.0) -> str:
    """ "killed by TEST" or "SURVIVED"; None is the package as it is."""
    with tempfile.TemporaryDirectory(prefix="fauxrdma-mutant-") as scratch:
        shutil.copytree(ROOT / "fauxrdma", Path(scratch) / "fauxrdma", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            target = Path(scratch) / mutant.path
            target.write_text(mutated(mutant, target.read_text()))
        env = {
            **os.environ,
            "PYTHONPATH": scratch,
            "PYTHONSAFEPATH": "1",  # or the working directory's package would come first
            "PYTHONDONTWRITEBYTECODE": "1",
            "FAUXRDMA_STAGES": "sim,express",
            "FAUXRDMA_HYPOTHESIS": "mutation",
        }
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=no", "-rfE",
            "--timeout", "60", "--timeout-method", "thread",
        ]  # fmt: skip
        for tests in filter(None, (mutant and mutant.first, SUITE)):
            try:
                done = subprocess.run(
                    [*command, *tests], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s
                )
            except subprocess.TimeoutExpired:
                return "killed: the suite did not come to an end"
            if done.returncode == 0:
                continue
            if done.returncode not in (1, 2):
                raise RuntimeError(
                    f"{mutant and mutant.name}: pytest ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
                )
            lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return (
                f"killed by {lines[0].split(' ', 1)[1].split(' - ')[0]}"
                if lines
                else "killed: a test did not come to an end"
            )
        return "SURVIVED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("names", nargs="*", help="only these")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    for mutant in chosen:
        mutated(mutant, (ROOT / mutant.path).read_text())
    control = run(None)
    if control != "SURVIVED":
        print(f"the suite fails without any mutant: {control}")
        return 1
    killed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, verdict in zip(chosen, pool.map(run, chosen), strict=True):
            killed += verdict != "SURVIVED"
            reason = f" ({mutant.survives_because})" if verdict == "SURVIVED" and mutant.survives_because else ""
            print(f"{mutant.name:44} {verdict}{reason}", flush=True)
    share = killed / len(chosen)
    print(f"{killed} of {len(chosen)} mutants killed, {share:.1%} (needed: {NEEDED:.0%})")
    return 0 if share >= NEEDED else 1


if __name__ == "__main__":
    sys.exit(main())
