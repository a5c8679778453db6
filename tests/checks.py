"""Rules about the source text: layers, lengths, format, clang-tidy. A function returns the violations as
lines `file:line: what`."""

import hashlib
import json
import re
import shlex
import subprocess
from pathlib import Path

CODE = {".h", ".cpp", ".cu", ".cuh"}
MAX_LINES = 800

# docs/architecture.md's table, lowest layer first: what a folder of src/ may include, besides itself and what
# those layers may include.
LAYERS = {
    "base": [],
    "tensor": ["base"],
    "weights": ["tensor"],
    "ops": ["tensor"],
    "backend/reference": ["ops"],
    "backend/cpu": ["ops", "backend/reference"],
    "backend/cuda": ["ops", "backend/reference"],
    "comm": ["ops"],
    "model/hy_v3": ["ops", "comm", "weights"],
    "kv": ["base"],
    "sampling": ["ops"],
    "text": ["base"],
    "engine": ["model/hy_v3", "kv", "sampling"],
    "serve": ["text"],
    "apps": ["serve", "engine", "text", "backend/reference", "backend/cpu", "backend/cuda"],
}
# Of a layer that it must not know otherwise, a folder may include these headers.
SEAMS = {"serve": {"engine/engine.h", "sampling/stop_matcher.h"}}


def code_files(root):
    """The C++ and CUDA files of the repository."""
    folders = ("src", "verify", "bench", "tests")
    return sorted(path for folder in folders for path in (root / folder).rglob("*") if path.suffix in CODE)


def layer_of(path):
    """The layer of a path relative to src/, or None."""
    return next((layer for layer in LAYERS if path.startswith(layer + "/")), None)


def reachable(layer):
    """The layer itself and all below it."""
    return {layer}.union(*(reachable(lower) for lower in LAYERS[layer]))


def allowed_layers(path):
    """What a file of src/ may include. A unit test (x_test.cpp, and the fake_x and test_x that serve it) is a
    program of its own, on which nothing stands: it may take any layer listed up to its own, to build what it tests
    from real parts."""
    layer = layer_of(path)
    if re.search(r"(_test\.cpp|/(fake|test)_[^/]*)$", path):
        names = list(LAYERS)
        return set(names[: names.index(layer) + 1])
    return reachable(layer)


def includes_of(path):
    """(line number, name) of each #include "…"."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*"([^"]+)"', line):
            yield number, match[1]


def resolve(source, path, name):
    """The file of src/ that an include means, or None for one that lies elsewhere."""
    candidates = [path.parent / name, source / name]
    return next((c.resolve() for c in candidates if c.is_file() and c.resolve().is_relative_to(source)), None)


def check_includes(root):
    source = (root / "src").resolve()
    problems = []
    for path in sorted(p for p in source.rglob("*") if p.suffix in CODE):
        relative = path.relative_to(source).as_posix()
        if layer_of(relative) is None:
            problems.append(f"src/{relative}:1: its folder is not a layer of tests/checks.py")
            continue
        for number, name in includes_of(path):
            target = resolve(source, path, name)
            if target is None:
                continue
            header = target.relative_to(source).as_posix()
            if layer_of(header) not in allowed_layers(relative) and header not in SEAMS.get(layer_of(relative), ()):
                problems.append(f"src/{relative}:{number}: {layer_of(relative)} may not include {header}")
    return problems


def check_lengths(root):
    suffixes = CODE | {".py", ".rs", ".sh", ".cmake"}
    folders = ("src", "verify", "bench", "tests", "tools", "cmake", "bridge/src")
    problems = []
    for path in sorted(p for folder in folders for p in (root / folder).rglob("*") if p.suffix in suffixes):
        lines = path.read_text().count("\n")
        if lines > MAX_LINES:
            problems.append(f"{path.relative_to(root)}:{MAX_LINES}: {lines} lines, at most {MAX_LINES} are allowed")
    return problems


def check_format(root):
    run = subprocess.run(["clang-format", "--dry-run", "-Werror", *map(str, code_files(root))],
                         capture_output=True, text=True, check=False)
    places = {}
    for file, line in re.findall(r"^(\S+?):(\d+):\d+: error: code should be clang-formatted", run.stderr, re.MULTILINE):
        places.setdefault(file, []).append(line)
    problems = [f"{file.removeprefix(f'{root}/')}:{lines[0]}: not as clang-format writes it (places: {len(lines)})"
                for file, lines in places.items()]
    return problems if problems or run.returncode == 0 else [run.stderr.strip()]


class Tidy:
    """clang-tidy over the translation units of a build folder. A unit that was clean is not looked at again
    until it, a header of ours that it includes, its command or the rules change."""

    def __init__(self, root, build):
        self.root, self.build = root, build
        self.source = (root / "src").resolve()
        self.cache = root / "build" / "tidy"
        self.cache.mkdir(parents=True, exist_ok=True)
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
        self.rules = version + (root / ".clang-tidy").read_text()
        entries = json.loads((build / "compile_commands.json").read_text())
        self.commands = {Path(e["file"]).resolve(): e.get("command") or shlex.join(e["arguments"]) for e in entries}

    def units(self, with_tests):
        units = sorted(path for path in self.commands if path.is_relative_to(self.source))
        return [path for path in units if with_tests or not path.stem.endswith("_test")]

    def headers(self, path, seen):
        """Adds to `seen` the file and all headers of ours that it reaches."""
        if path not in seen:
            seen.add(path)
            for _, name in includes_of(path):
                if (target := resolve(self.source, path, name)) is not None:
                    self.headers(target, seen)
        return seen

    def stamp(self, path):
        digest = hashlib.sha256((self.rules + self.commands[path]).encode())
        for file in sorted(self.headers(path, set())):
            digest.update(file.read_bytes())
        return self.cache / digest.hexdigest()

    def check(self, path):
        stamp = self.stamp(path)
        if stamp.exists():
            return []
        run = subprocess.run(["clang-tidy", "--quiet", "-p", str(self.build), str(path)], capture_output=True,
                             text=True, check=False)
        if run.returncode == 0:
            stamp.touch()
            return []
        return [(run.stdout.strip() or run.stderr.strip()).replace(f"{self.root}/", "")]
