"""What is shipped: the source archive is whole, and its wheel works where nothing else is installed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging import requirements

from engine.cli import COMMANDS
from tests.project.system_copy import in_a_copy_of_the_system
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "package"))
import deb  # noqa: E402
import krew  # noqa: E402
import man  # noqa: E402
import manylinux  # noqa: E402
import musl  # noqa: E402
import sbom  # noqa: E402
import try_wheel  # noqa: E402

KERNELS = Path("engine/_fast")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NOT_BASELINE = re.compile(
    r"\s+[0-9a-f]+:\t(?:lock )?(?:v[a-z]|k[a-z]+[bwdq] |popcnt|lzcnt|crc32|movbe|cmpxchg16b|ptest|palign"
    r"|pshufb|p?blend|ph(?:add|sub)|psign|pabs|pmulhrs|pmaddubs|pmuld|pmulld|pcmp(?:gt|eq)q|pcmp[ei]str|round[ps]"
    r"|pextr[bdq]|pinsr[bdq]|insertps|extractps|pm(?:in|ax)(?:s[bd]|u[wd])|pmov[sz]x|packusdw|mpsad|addsub|h(?:add|sub)p"
    r"|mov[sd]dup|lddqu|andn |bzhi|bextr|bls|pdep|pext |sarx|shlx|shrx|rorx|mulx|adcx|adox|aes|sha|pclmul)"
)
"""Instructions of x86-64-v2 and later, as objdump writes them; tzcnt is the bytes of an older one."""
BACKEND = "from setuptools import build_meta; import sys; build_meta.build_{what}(sys.argv[1])"


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    """Return the names of the files that git tracks."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout to know the project's files")
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def sdist(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the source archive of a copy of the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    return build("sdist", copy)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the wheel that is built from the source archive."""
    directory = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xf", sdist, "-C", directory], check=True)
    return build("wheel", directory / f"kubengine-{VERSION}")


def build(what: str, tree: Path) -> Path:
    """Run the build backend with the compiled kernels of this checkout: compiling takes a minute."""
    compiled = tree / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for source in sorted([*(ROOT / KERNELS).rglob("*.pyx"), ROOT / KERNELS / "_cyutility"]):
        for suffix, target in ((".c", tree), (SUFFIX, compiled)):
            path = source.with_name(source.stem + suffix)
            place = target / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    command = [sys.executable, "-c", BACKEND.format(what=what), str(tree / "dist")]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, timeout=600)
    (found,) = (tree / "dist").iterdir()
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' directory of an environment that has only the wheel and its requirements."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    put(home, deb.requirements(wheel))
    return home / "bin"


def put(home: Path, distributions: Iterable[Distribution]) -> None:
    """Put the installed requirements into an environment, as links."""
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for installed in distributions:
        for top in {Path(file).parts[0] for file in installed.files or () if not str(file).startswith("..")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(installed.locate_file(top)))


def test_archives_are_the_same_bytes_when_built_again(
    tracked: set[str], sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    """The second build has another directory, time and umask."""
    again = tmp_path / "elsewhere"
    for name in tracked:
        (again / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, again / name)
        (again / name).chmod(0o600 | (ROOT / name).stat().st_mode & 0o100)
    second = build("sdist", again)
    assert second.read_bytes() == sdist.read_bytes()
    subprocess.run(["tar", "-xf", second, "-C", tmp_path], check=True)
    assert build("wheel", tmp_path / f"kubengine-{VERSION}").read_bytes() == wheel.read_bytes()


def test_a_kernel_is_the_same_bytes_when_compiled_again(tracked: set[str], tmp_path: Path) -> None:
    """Of a copy of the checkout in which one kernel is left to compile; the checkout has the first build."""
    kernels = [ROOT / name for name in tracked if name.endswith(".pyx")]
    smallest = min(kernels, key=lambda path: path.stat().st_size)
    for name in tracked:
        if not name.endswith(".pyx") or ROOT / name == smallest:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    libraries = sorted((tmp_path / "engine").rglob("*.so"))
    assert len(libraries) == 2, "the kernel, and the library that all kernels share"
    for library in libraries:
        built = ROOT / library.relative_to(tmp_path)
        assert library.read_bytes() == built.read_bytes(), f"make build made another {built}"


def test_the_source_archive_is_whole(sdist: Path, tracked: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        top = f"kubengine-{VERSION}/"
        names = {member.name.removeprefix(top) for member in archive.getmembers() if member.isfile()}
    assert tracked - names == set()
    added = {name for name in names - tracked if not name.startswith("kubengine.egg-info/")}
    assert added == {"PKG-INFO", "setup.cfg"}


def test_the_wheel_has_every_module_kernel_and_type(wheel: Path, tracked: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    kinds = {".py", ".pyi", ".typed", ".css", ".html", ".js", ".c"}
    expected = {name for name in tracked if name.startswith("engine/") and Path(name).suffix in kinds}
    assert {name for name in expected if Path(name).name != "py.typed"} - names == set()
    assert "engine/py.typed" in names
    kernels = {name.removesuffix(".pyx") + SUFFIX for name in tracked if name.endswith(".pyx")}
    kernels.add(f"engine/_fast/_cyutility{SUFFIX}")
    assert {name for name in names if name.endswith(".so")} == kernels
    assert not {name for name in names if name.endswith((".pyx", ".pxd", ".h"))}, "sources of kernels"
    assert {
        name for name in names if not name.startswith(("engine/", f"kubengine-{VERSION}.dist-info/"))
    } == {"kubengine.py"}


def test_the_wheel_needs_only_libraries_that_every_system_has(wheel: Path) -> None:
    assert re.fullmatch(rf"manylinux_2_\d+_{os.uname().machine}", manylinux.platform_tag(wheel))


@pytest.mark.skipif(find_spec("auditwheel") is None, reason="needs auditwheel (`make build` installs it)")
def test_auditwheel_gives_it_the_name_that_we_give_it(wheel: Path) -> None:
    """auditwheel knows each tag's libraries, and the processor features that libraries need."""
    assert manylinux.audited_tag(wheel) == manylinux.platform_tag(wheel)


def test_a_wheel_has_the_name_that_auditwheel_gives(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manylinux, "audited_tag", lambda _: "manylinux_2_39_x86_64")
    with pytest.raises(SystemExit, match="auditwheel gives manylinux_2_39_x86_64"):
        manylinux.rename(wheel)
    assert wheel.exists()


def test_a_wheel_that_needs_the_c_library_of_alpine_is_for_musl(tmp_path: Path) -> None:
    (tmp_path / "kernel.c").write_text("int answer(void) { return 42; }\n")
    make = ["cc", "-shared", "-fPIC", "-nostdlib", "kernel.c"]
    subprocess.run([*make, "-Wl,-soname,libc.so", "-o", "libc.so"], cwd=tmp_path, check=True)
    needed = ["-Wl,--no-as-needed", "libc.so"]
    subprocess.run([*make, "-o", "kernel.so", *needed], cwd=tmp_path, check=True)
    made = tmp_path / "kubengine-1-cp311-cp311-linux_aarch64.whl"
    with zipfile.ZipFile(made, "w") as archive:
        archive.write(tmp_path / "kernel.so", "engine/_fast/kernel.so")
    assert manylinux.platform_tag(made) == "musllinux_1_2_aarch64"


@pytest.mark.parametrize("machine", musl.MACHINES)
def test_a_wheel_for_musl_has_its_own_suffix_and_no_threads(machine: str, tmp_path: Path) -> None:
    """GCC's OpenMP library, which comes with the wheel, needs glibc."""
    name = musl.write_sysconfig_data(tmp_path, machine)
    environment = {"_PYTHON_SYSCONFIGDATA_NAME": name, "PYTHONPATH": str(tmp_path)}
    program = (
        "import sysconfig, distutils.core\n"
        "made = distutils.core.run_setup('setup.py', stop_after='init').ext_modules\n"
        "threads = any('-fopenmp' in ext.extra_link_args for ext in made)\n"
        "print(sysconfig.get_config_var('EXT_SUFFIX'), threads)"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", f"import setuptools\n{program}"],
            cwd=ROOT, env=os.environ | variables, check=True, capture_output=True, text=True,
        ).stdout.split()
        for variables in (environment, {})
    ]  # fmt: skip
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    assert shown == [[f".{tag}-{machine}-linux-musl.so", "False"], [SUFFIX, "True"]]


def test_a_wheel_is_tried_with_the_python_of_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert try_wheel.python_of(Path(f"kubengine-1-{own}-{own}-linux_x86_64.whl")) == sys.executable
    with pytest.raises(SystemExit, match=r"needs python3\.99 on the PATH"):
        try_wheel.python_of(Path("kubengine-1-cp399-cp399-linux_x86_64.whl"))
    for_alpine = Path(f"kubengine-1-{own}-{own}-musllinux_1_2_x86_64.whl")
    monkeypatch.delenv("MUSL_PYTHON", raising=False)
    with pytest.raises(SystemExit, match="set MUSL_PYTHON to a Python that is linked with musl"):
        try_wheel.python_of(for_alpine)
    monkeypatch.setenv("MUSL_PYTHON", "/opt/musl/bin/python3")
    assert try_wheel.python_of(for_alpine) == "/opt/musl/bin/python3"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="is about x86-64, whose processors differ")
def test_optional_processor_instructions_are_only_in_variants_picked_at_run_time(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.extract(name, tmp_path) for name in archive.namelist() if ".so" in name]
    found = {function for library in libraries for function in beyond_the_baseline(library)}
    variants = {function for function in found if re.search(r"[._](popcnt|avx2|avx512)\b", function)}
    assert found - variants == set()
    assert {f"kb_choose_{width}" for width in ("avx2", "avx512")} <= variants


def beyond_the_baseline(library: str) -> Iterator[str]:
    """Yield the functions of `library` with instructions that the first x86-64 processors lack."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", library]
    function = library
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listing:
        for line in listing.stdout or ():
            if heading := re.match(r"[0-9a-f]+ <(.*)>:$", line):
                function = heading[1]
            elif NOT_BASELINE.match(line):
                yield function
    assert listing.returncode == 0


def test_it_is_small(wheel: Path) -> None:
    """Within an eighth of its size when this was written; what a start loads has budgets in `tests/cli`."""
    assert wheel.stat().st_size < 4_500_000
    with zipfile.ZipFile(wheel) as archive:
        assert sum(file.file_size for file in archive.infolist()) < 15_000_000


def test_the_command_works_in_a_bare_environment(bare: Path) -> None:
    assert "Commands:" in kubengine(bare, "--help")
    assert kubengine(bare, "--version") == f"kubengine {VERSION}\n"


def test_the_planner_wants_its_extra_and_then_works(wheel: Path, bare: Path, tmp_path: Path) -> None:
    command = [bare / "kubengine", "plan", "synth"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert refused.returncode == 1
    assert "plan needs pyarrow, which is not installed: pip install 'kubengine[plan]'" in refused.stderr
    put(bare.parent, deb.requirements(wheel, deb.PLAN))
    cluster = str(tmp_path / "cluster.kes")
    kubengine(bare, "plan", "synth", "--nodes", "5", "-o", cluster)
    assert "preempt" in kubengine(bare, "plan", "preempt", "--requests", "cpu=64", "--critical", cluster)


def test_a_node_runs_in_a_bare_environment(bare: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "kind: KubeletConfiguration\nenableServer: false\nhealthzPort: 0\nresolvConf: ''\n"
        f"podLogsDir: {tmp_path}/logs\ncgroupsPerQOS: false\nenforceNodeAllocatable: []\n"
    )
    arguments = ["--config", str(config), "--root-dir", str(tmp_path / "r"), "--runtime", "hollow"]
    manifests = ["--manifests", str(ROOT / "examples/manifests")]
    with subprocess.Popen(
        [bare / "kubengine", "run", *arguments, *manifests], stderr=subprocess.PIPE
    ) as agent:
        try:
            wait_until(lambda: running(bare, tmp_path / "r") == 3 or agent.poll() is not None)
        finally:
            agent.send_signal(signal.SIGTERM)
        _, errors = agent.communicate(timeout=240)
    assert agent.returncode == 0, errors.decode()
    assert b"Traceback" not in errors


def running(bare: Path, root: Path) -> int:
    command = [bare / "kubengine", "status", "--agent", str(root / "kubengine.sock")]
    shown = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    return shown.stdout.count(" Running ")


def kubengine(bare: Path, *arguments: str) -> str:
    return subprocess.run(
        [bare / "kubengine", *arguments], check=True, capture_output=True, text=True, cwd=bare, timeout=240
    ).stdout


def test_the_version_is_in_one_place() -> None:
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert heading[1] == VERSION


def test_every_command_has_a_man_page_with_its_options() -> None:
    pages = dict(man.pages())
    assert {f"kubengine-{name}" for name in COMMANDS} | {"kubengine", "kubengine-plan-preempt"} <= set(pages)
    for name, text in pages.items():
        escaped = name.replace("-", "\\-")
        title, heading, summary = text.splitlines()[:3]
        assert title.startswith(f'.TH {escaped.upper()} 1 "" "kubengine {VERSION}"')
        assert heading == ".SH NAME"
        assert summary.startswith(f"{escaped} \\- "), summary
        assert re.findall(r"^[.'](?!TH |SH |TP$|PP$|BR? )", text, re.MULTILINE) == [], name
    assert ".B \\-\\-root\\-dir DIRECTORY" in pages["kubengine-run"]
    assert ".BR kubengine\\-plan\\-preempt (1)" in pages["kubengine-plan"]


SCRIPT = """
PATH=/usr/sbin:/usr/bin:/sbin:/bin
changed() {{ cd {scratch}; find */changed -not -type d | grep -v -e /lib/dpkg -e /log/ -e /cache/man || :; }}
dpkg --install --no-triggers --force-depends {packages}/kubengine_* >&2
kubengine --version
echo 'KUBENGINE_OPTIONS=--log-level=debug' > /etc/default/kubengine
touch /etc/kubengine/config.yaml
dpkg --install --no-triggers --force-depends {packages}/kubengine_* >&2
cat /etc/default/kubengine
kubengine plan preempt --help 2>&1 || :
zcat /usr/share/man/man1/kubengine-run.1.gz | head -n 1
bash -c '. /usr/share/bash-completion/completions/kubengine && complete -p kubengine' | head -c 8; echo
dpkg --status kubengine | grep -c -e 'Status: install ok installed' -e '^ /etc/'
echo compiled: $(changed | grep -c 'usr/changed/lib/kubengine.*__pycache__')
dpkg --install --no-triggers {packages}/kubengine-plan_* >&2
cd {scratch}
kubengine plan synth --nodes 5 -o cluster.kes >&2
kubengine plan preempt --requests cpu=64 --critical --quiet -o answer.parquet cluster.kes >&2
head -c 4 answer.parquet; echo
dpkg --remove --no-triggers kubengine-plan kubengine >&2
ls /etc/default/kubengine
dpkg --purge --no-triggers kubengine-plan kubengine >&2
rm cluster.kes answer.parquet
changed
"""


@pytest.fixture(scope="module")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the Debian packages of the wheel; skip where they cannot be built."""
    if shutil.which("dpkg-deb") is None or shutil.which(deb.PYTHON, path="/usr/bin") is None:
        pytest.skip(f"needs Debian, and its own {deb.PYTHON}, which the packages are for")
    directory = tmp_path_factory.mktemp("packages")
    deb.build(wheel, directory)
    return directory


@pytest.mark.slow
def test_the_kubectl_plugin_runs_from_its_archive(wheel: Path, tmp_path: Path) -> None:
    archive, manifest = krew.build(wheel, tmp_path / "built", "https://example.test/v0/")
    (platform,) = yaml.safe_load(manifest.read_text())["spec"]["platforms"]
    assert platform["uri"] == f"https://example.test/v0/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "kubectl-kubengine"
    command.symlink_to(tmp_path / platform["bin"])
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    made = subprocess.run([command, "synth", "--nodes", "3"], env=path, check=True, capture_output=True)
    done = subprocess.run(
        [command, "admit", "--requests", "cpu=1", "--json", "-"],
        env=path, input=made.stdout, check=True, capture_output=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["rows"]


@pytest.mark.slow
def test_a_nodes_package_is_without_what_only_the_planner_needs(packages: Path) -> None:
    built = {path.name.partition("_")[0]: path for path in packages.iterdir()}
    assert set(built) == {"kubengine", "kubengine-plan"}
    for path in built.values():
        fields = subprocess.run(["dpkg-deb", "--field", path], check=True, capture_output=True, text=True)
        assert f"Version: {VERSION}\n" in fields.stdout
        assert path.stat().st_size < 40_000_000


@pytest.mark.root
@pytest.mark.slow
def test_the_debian_packages_install_work_upgrade_and_purge(packages: Path, tmp_path: Path) -> None:
    script = SCRIPT.format(scratch=tmp_path, packages=packages)
    lines = in_a_copy_of_the_system(script, tmp_path)
    assert lines[:6] == [
        f"kubengine {VERSION}",
        "KUBENGINE_OPTIONS=--log-level=debug",
        "Error: plan needs pyarrow, which is not installed: pip install 'kubengine[plan]' "
        "(Debian: apt install kubengine-plan)",
        f'.TH KUBENGINE\\-RUN 1 "" "kubengine {VERSION}" "Kubengine"',
        "complete",
        "3",
    ]
    assert int(lines[6].removeprefix("compiled: ")) > 1000
    assert lines[7:] == ["PAR1", "/etc/default/kubengine"]


LOCKS = ROOT / "requirements"
ENTRY = re.compile(r"^([\w.-]+)==(\S+) \\$")


@pytest.mark.parametrize("name", ["build", "node", "plan", "dev"])
def test_a_lock_file_holds_names_versions_and_hashes_only(name: str) -> None:
    lines = [
        line for line in (LOCKS / f"{name}.txt").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert [line for line in lines if not ENTRY.match(line) and not re.match(HASH, line)] == []
    assert len(lines) > len(locked(name)) > 5


@pytest.mark.parametrize("name", ["build", "node", "plan", "dev"])
def test_each_locked_version_has_a_hash(name: str) -> None:
    lines = (LOCKS / f"{name}.txt").read_text().splitlines()
    bare = [
        line
        for line, after in itertools.pairwise([*lines, ""])
        if ENTRY.match(line) and not re.match(HASH, after)
    ]
    assert bare == []


UNLOCKED = ("'atheris>=3'", "'pip-tools>=7.5'")
"""What `make fuzz` and `make lock` take from the index: no part of what is built or shipped."""


def test_make_installs_what_is_locked_and_nothing_else() -> None:
    text = (ROOT / "Makefile").read_text()
    assert re.findall(r"^LOCKED := (.*)$", text, re.MULTILINE) == [
        "$(BIN)/pip install -q --require-hashes --no-deps"
    ]
    installing = [line.strip() for line in text.splitlines() if re.search(r"\bpip (install|wheel)\b", line)]
    others = [
        line
        for line in installing
        if not line.startswith("LOCKED")
        and "--no-deps" not in line
        and not any(name in line for name in UNLOCKED)
    ]
    assert others == []


def test_make_run_installs_what_a_node_needs_and_nothing_else() -> None:
    text = (ROOT / "Makefile").read_text()
    needed = dict(re.findall(r"^(run|\$\(VENV\)/\.(?:node|kernels)): (.*)$", text, re.MULTILINE))
    assert needed["run"].split() == ["$(VENV)/.node", "$(VENV)/.kernels"]
    assert needed["$(VENV)/.node"].split()[0] == "requirements/node.txt"
    assert "$(VENV)/.installed" not in " ".join(needed.values())


def test_what_users_install_has_an_upper_bound() -> None:
    """A major version of a library may remove what the engine uses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for name in ("plan", "claims", "tracing") for line in extras[name]),
    ]
    assert [line for line in lines if "<" not in line and "==" not in line] == []


HASH = r"    --hash=sha256:[0-9a-f]{64}( \\)?$"


def locked(name: str) -> dict[str, str]:
    text = (LOCKS / f"{name}.txt").read_text().splitlines()
    return {match[1]: match[2] for line in text if (match := ENTRY.match(line))}


def test_lock_files_agree_and_a_node_needs_no_arrow() -> None:
    everything = locked("dev")
    for name in ("build", "node", "plan"):
        assert locked(name).items() <= everything.items(), name
    assert not {"pyarrow", "dask", "mypy", "pytest"} & locked("node").keys()
    assert locked("plan").keys() - locked("node").keys() == {"pyarrow"}


def test_every_requirement_is_locked() -> None:
    """This fails too if pyproject.toml has changed and `make lock` has not run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lists = {"node": project["project"]["dependencies"], "build": project["build-system"]["requires"]}
    lists |= {"plan": extras["plan"], "dev": [line for extra in extras.values() for line in extra]}
    for name, lines in lists.items():
        versions = locked(name)
        for line in lines:
            wanted = requirements.Requirement(line)
            version = versions[re.sub(r"[-_.]+", "-", wanted.name).lower()]
            assert wanted.specifier.contains(version), f"{name}: {line}"


def test_a_bill_of_materials_lists_what_is_required(wheel: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(wheel, tmp_path))
    bills = [sbom.write(copy).read_bytes() for _ in range(2)]
    assert bills[0] == bills[1]
    bill = json.loads(bills[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["version"] == VERSION
    listed = {each["name"]: each for each in bill["components"]}
    for name, version in locked("plan").items():
        assert listed[name]["version"] == version
        assert listed[name]["purl"] == f"pkg:pypi/{name}@{version}"
    scopes = {name: listed[name]["scope"] for name in ("msgspec", "pyarrow", "cython", "libgomp")}
    assert scopes == {
        "msgspec": "required",
        "pyarrow": "optional",
        "cython": "excluded",
        "libgomp": "required",
    }
    references = {each["bom-ref"] for each in bill["components"]}
    for each in bill["dependencies"]:
        assert set(each["dependsOn"]) <= references
    (own,) = (each for each in bill["dependencies"] if each["ref"] == "kubengine")
    assert listed["msgspec"]["bom-ref"] in own["dependsOn"]


def test_the_debian_package_needs_openssl() -> None:
    """Without it there is no key, no certificate request and no certificate for the node's port."""
    control = (ROOT / "package/debian/control.kubengine").read_text()
    (depends,) = re.findall(r"^Depends: (.*)$", control, re.MULTILINE)
    assert "openssl" in depends.split(", ")
