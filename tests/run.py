"""Runs every test of a built tree and prints what failed, what was slow, and how many passed.

./test calls it. Test programs and pytest see TERCET_FULL=1 in their environment when everything exhaustive is
to run too."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import checks

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
REPORTS = ROOT / "build" / "reports"
SLOW_SECONDS = 5.0


@dataclass
class Report:
    """What one job found. A job that could not run is one failure."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    output: str = ""  # shown where something failed
    cases: list = field(default_factory=list)  # (seconds, name) of its tests


def run_program(command, env, limit, log):
    """The exit code of a command whose output goes to `log`; -1 where it ran longer than `limit` seconds."""
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env,
                                   cwd=ROOT, start_new_session=True)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            out.write(f"\nkilled after {limit} s\n")
            return -1


def gtest_job(program, env, limit):
    report, found = Report(program.name), REPORTS / f"{program.name}.json"
    found.unlink(missing_ok=True)
    log = REPORTS / f"{program.name}.log"
    code = run_program([program, f"--gtest_output=json:{found}"], env, limit, log)
    tests = []
    if found.exists():
        tests = [t for suite in json.loads(found.read_text())["testsuites"] for t in suite["testsuite"]]
    for test in tests:
        if test["status"] == "RUN":
            bad, skipped = bool(test.get("failures")), test["result"] == "SKIPPED"
            report.failed += bad
            report.skipped += skipped and not bad
            report.passed += not bad and not skipped
            report.cases.append((float(test["time"].rstrip("s")), f"{test['classname']}.{test['name']}"))
    return close(report, code, log)


def pytest_job(path, env, limit):
    report, found = Report(path.name), REPORTS / f"{path.stem}.xml"
    found.unlink(missing_ok=True)
    log = REPORTS / f"{path.stem}.log"
    code = run_program([sys.executable, "-m", "pytest", "-q", f"--junitxml={found}", path], env, limit, log)
    suites = ElementTree.parse(found).getroot().iter("testsuite") if found.exists() else []
    for suite in suites:
        counts = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
        report.failed += counts["failures"] + counts["errors"]
        report.skipped += counts["skipped"]
        report.passed += counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
        report.cases += [(float(case.get("time")), f"{path.stem}.{case.get('name')}") for case in suite.iter("testcase")]
    return close(report, code, log)


def close(report, code, log):
    """Counts a crash, a time-out or a program without tests as a failure, and keeps the output of failures."""
    if report.failed == 0 and (code != 0 or report.passed + report.skipped == 0):
        report.failed = 1
        report.output = f"ended with code {code} after {report.passed} tests\n"
    if report.failed:
        report.output += "\n".join(log.read_text(errors="replace").splitlines()[-200:])
    return report


def fuzz_job(env, limit):
    log = REPORTS / "fuzz.log"
    code = run_program([sys.executable, "tests/fuzz.py"], env, limit, log)
    return close(Report("fuzz", passed=int(code == 0)), code, log)


def check_job(name, check):
    problems = check()
    return Report(name, passed=int(not problems), failed=int(bool(problems)), output="\n".join(problems))


def jobs(full):
    """(name, function) of every job, those that take long first."""
    env = dict(os.environ)
    env.pop("TERCET_FULL", None)
    if full:
        env["TERCET_FULL"] = "1"
    limit = 7200 if full else 2400
    found = [(p.name, lambda p=p: pytest_job(p, env, limit)) for p in sorted((ROOT / "tests").glob("test_*.py"))]
    if full:
        found.append(("fuzz", lambda: fuzz_job(env, limit)))
    programs = sorted(p for p in (BUILD / "tests").iterdir() if p.is_file() and os.access(p, os.X_OK))
    found += [(p.name, lambda p=p: gtest_job(p, env, limit)) for p in programs]
    for name in ("includes", "lengths", "format"):
        check = getattr(checks, f"check_{name}")
        found.append((name, lambda name=name, check=check: check_job(name, lambda: check(ROOT))))
    tidy = checks.Tidy(ROOT, BUILD)
    for unit in tidy.units(with_tests=full):
        name = f"tidy {unit.relative_to(tidy.source)}"
        found.append((name, lambda name=name, unit=unit: check_job(name, lambda: tidy.check(unit))))
    return found


def timed(job):
    start = time.monotonic()
    report = job()
    report.seconds = time.monotonic() - start
    return report


def merge_tidy(reports):
    """All clang-tidy jobs count as one check."""
    tidy = [r for r in reports if r.name.startswith("tidy ")]
    rest = [r for r in reports if not r.name.startswith("tidy ")]
    if tidy:
        bad = any(r.failed for r in tidy)
        output = "\n".join(r.output for r in tidy if r.output)
        rest.append(Report("clang-tidy", passed=int(not bad), failed=int(bad), output=output))
    return rest


def run_all(selected):
    """The reports of all jobs, each printed as it ends; as many at once as there are cores."""
    reports = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for future in as_completed([pool.submit(timed, job) for _, job in selected]):
            report = future.result()
            reports.append(report)
            if report.failed or not report.name.startswith("tidy "):
                mark = "FAILED" if report.failed else "ok"
                counts = f"{report.passed} passed, {report.failed} failed"
                print(f"{mark:6} {report.name:32} {report.seconds:7.1f} s  {counts}", flush=True)
    return merge_tidy(reports)


def summarise(reports):
    for report in sorted((r for r in reports if r.failed), key=lambda r: r.name):
        print(f"\n--- {report.name}\n{report.output}")
    cases = sorted((case for r in reports for case in r.cases), reverse=True)
    slow = [case for case in cases[:10] if case[0] >= SLOW_SECONDS]
    if slow:
        print("\nslowest tests:")
        for seconds, name in slow:
            print(f"{seconds:7.1f} s  {name}")
    passed, failed, skipped = (sum(getattr(r, key) for r in reports) for key in ("passed", "failed", "skipped"))
    print(f"\n{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


def main():
    parser = argparse.ArgumentParser(prog="./test", description="Builds and runs the tests.")
    parser.add_argument("--full", action="store_true", help="add what is exhaustive")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only jobs whose name contains one of these")
    args = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    selected = [job for job in jobs(args.full) if not args.names or any(name in job[0] for name in args.names)]
    return summarise(run_all(selected))


if __name__ == "__main__":
    sys.exit(main())
