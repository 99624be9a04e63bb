"""``examples``: the DAGs of dags/, copied; nothing of the user's is overwritten unasked."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import examples
from tests.cli.conftest import Command

DAGS = {path.name: path.read_text() for path in (Path(__file__).parents[2] / "dags").glob("*.py")}


JOBS = {"hourly_stream_job.py"}


def in_folder(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_each_says_what_it_is_and_what_it_needs(command: Command) -> None:
    rows = json.loads(command("examples", "list", "--output", "json").out)
    assert [row["name"] for row in rows] == sorted(name.removesuffix(".py") for name in DAGS.keys() - JOBS)
    for row in rows:
        assert "connection" in row["needs"] and "kafka_default" in row["needs"], row
        assert row["what"] and row["what"] != row["needs"]
    needs = "needs Airflow 3.2, the connections `kafka_default` and `spark_default`, and a topic `events`"
    assert f"\n    {needs}\n" in command("examples", "list").out


def test_the_topics_that_a_docstring_names_are_those_that_are_loaded() -> None:
    for one in examples.examples():
        if "ExactlyOnceLoad(" in one.text:
            code = one.text.split('"""', 2)[2]
            loaded = [
                word.strip("`,") for word in one.needs.partition("topic")[2].split(", a ")[0].split() if "`" in word
            ]
            assert loaded and all(f'"{topic}"' in code for topic in loaded), one.name


def test_copies_all_into_a_folder_that_it_makes_and_says_what_they_need(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "airflow" / "dags"
    done = command("examples", "copy", str(folder))
    assert done.code == 0 and in_folder(folder) == DAGS
    assert done.out.splitlines() == [str(folder / name) for name in sorted(DAGS)]
    assert "the extra `postgres`" in done.err
    assert command("examples", "copy", str(folder)).code == 0  # what is there already is no other content


OF_3_2 = {"deadline_alert.py", "hourly_partitioned_assets.py"}


@pytest.mark.parametrize(
    ("installed", "left_out"), [("3.1.8", OF_3_2), ("3.2.0", set()), ("3.10.1", set()), (None, set())]
)
def test_what_the_installed_airflow_cannot_read_is_left_out_unless_it_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, left_out: set[str]
) -> None:
    def version(_: str) -> str:
        if installed is None:
            raise PackageNotFoundError
        return installed

    monkeypatch.setattr(examples, "version", version)
    done = command("examples", "copy", str(tmp_path))
    assert done.code == 0 and in_folder(tmp_path).keys() == DAGS.keys() - left_out
    for name in left_out:
        assert f"left out {name.removesuffix('.py')}, which needs Airflow 3.2: 3.1.8 is here" in done.err
    assert ("left out" in done.err) == bool(left_out)
    assert command("examples", "copy", str(tmp_path), "--name", "deadline_alert").code == 0
    assert "deadline_alert.py" in in_folder(tmp_path)


def test_the_folder_is_dags_where_none_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("examples", "copy", "--name", "kafka_eos_maintenance").code == 0
    assert list(in_folder(tmp_path / "dags")) == ["kafka_eos_maintenance.py"]


def test_an_example_s_job_goes_with_it(command: Command, tmp_path: Path) -> None:
    done = command("examples", "copy", str(tmp_path), "--name", "hourly_stream")
    assert in_folder(tmp_path) == {name: DAGS[name] for name in ("hourly_stream.py", "hourly_stream_job.py")}
    assert done.out.splitlines() == [str(tmp_path / name) for name in ("hourly_stream.py", "hourly_stream_job.py")]
    (tmp_path / "hourly_stream_job.py").write_text("# mine\n")
    refused = command("examples", "copy", str(tmp_path), "--name", "hourly_stream")
    assert refused.code == 2 and "has hourly_stream_job.py with other content" in refused.err


def test_overwrites_nothing_unless_forced(command: Command, tmp_path: Path) -> None:
    mine, others = tmp_path / "mapped_topics.py", tmp_path / "others.py"
    mine.write_text("# mine\n")
    others.write_text("# another team's\n")
    refused = command("examples", "copy", str(tmp_path))
    assert refused.code == 2 and "mapped_topics.py with other content, so nothing was copied" in refused.err
    assert in_folder(tmp_path) == {"mapped_topics.py": "# mine\n", "others.py": "# another team's\n"}
    assert command("examples", "copy", str(tmp_path), "--force").code == 0
    assert in_folder(tmp_path) == DAGS | {"others.py": "# another team's\n"}


def test_a_link_counts_as_a_file_and_what_it_leads_to_stays(command: Command, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "dags", tmp_path / "elsewhere.py"
    folder.mkdir()
    elsewhere.write_text("# a deployment's own\n")
    (folder / "mapped_topics.py").symlink_to(elsewhere)
    (folder / "load_in_doubt.py").symlink_to(tmp_path / "nowhere.py")
    refused = command("examples", "copy", str(folder))
    assert refused.code == 2 and "load_in_doubt.py, mapped_topics.py" in refused.err
    assert command("examples", "copy", str(folder), "--force").code == 0
    assert in_folder(folder) == DAGS
    assert elsewhere.read_text() == "# a deployment's own\n" and not (tmp_path / "nowhere.py").exists()


# root may write anywhere, but not there: so it fails in the same way for all
@pytest.mark.parametrize("folder", ["/proc", "/proc/dags", "{file}", "{file}/dags"])
def test_a_folder_that_cannot_be_written_to_is_an_error_that_names_it(
    command: Command, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    named = folder.format(file=tmp_path / "file")
    done = command("examples", "copy", named)
    assert done.code == 2 and len(done.err.splitlines()) == 1
    assert f"ConfigurationError: {named} cannot be written to: " in done.err


def test_an_example_that_is_none_is_an_error_that_names_those_there_are(command: Command, tmp_path: Path) -> None:
    done = command("examples", "copy", str(tmp_path / "dags"), "--name", "flights")
    assert done.code == 2 and "there is no example flights. Name one of approve_outsized, " in done.err
    assert not (tmp_path / "dags").exists()
