"""Records of restarts: annotations that others revert, and failed tries that are repeated ever more seldom."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.agent.platforms.kubernetes.restarts.records import (
    Record,
    Template,
    deferral,
    failed_record,
    next_record,
    revert_warning,
)
from governor.agent.platforms.kubernetes.workloads.views import RESTART

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class TestReverts:
    def test_the_first_write_remembers_the_value_before(self) -> None:
        assert next_record(Template("old"), "new") == Record("new", "old", writes=1)
        assert next_record(Template("old", Record("old", "older", writes=3)), "new") == Record("new", "old", writes=1)

    def test_a_repeated_write_keeps_the_first_value_before(self) -> None:
        assert next_record(Template("theirs", Record("new", "old")), "new") == Record("new", "old", writes=2)

    @pytest.mark.parametrize(
        "template",
        [
            Template(),
            Template("new", Record("new", writes=9)),
            Template("", Record("other", writes=9)),
            Template("", Record("new", writes=3)),
        ],
    )
    def test_a_few_reverts_are_answered(self, template: Template) -> None:
        assert revert_warning(template, "new") == ""

    def test_more_end_with_a_warning_that_names_the_managers(self) -> None:
        warning = revert_warning(Template("", Record("new", writes=4), managers=("gitops", "helm")), "new")
        assert f"the annotation {RESTART} of its pod template was reverted 4 times, by gitops, helm;" in warning
        assert "left no trace" in revert_warning(Template("", Record("new", writes=4)), "new")
        assert revert_warning(Template("", Record("new", writes=4)), "new", answers=4) == ""


class TestFailures:
    @staticmethod
    def failed(times: int = 1) -> Template:
        template = Template("new", Record("new", "old"))
        for _ in range(times):
            record = failed_record(template, "new", "no sidecar", NOW, "dapr-1")
            template = Template("new", record)
        return msgspec.structs.replace(template, digest=record.previous)

    def test_taking_it_back_keeps_the_value_before_and_is_no_revert_by_others(self) -> None:
        assert self.failed().record == Record("new", "old", 0, 1, NOW, "no sidecar", "dapr-1")
        again = next_record(self.failed(2), "new")
        assert (again.previous, again.writes, again.failures) == ("old", 1, 2)
        assert revert_warning(self.failed(9), "new") == ""

    def test_a_record_that_others_removed_is_written_anew(self) -> None:
        assert failed_record(Template("new"), "new", "late", NOW, "") == Record("new", "", 0, 1, NOW, "late")

    @pytest.mark.parametrize(("failures", "delay_s"), [(1, 30), (2, 60), (3, 120), (6, 960), (7, 1800), (99, 1800)])
    def test_each_try_waits_longer(self, failures: int, delay_s: int) -> None:
        template = self.failed(failures)
        last = NOW + timedelta(seconds=delay_s - 1)
        assert deferral(template, "new", last, "dapr-1")
        assert deferral(template, "new", last + timedelta(seconds=1), "dapr-1") == ""

    def test_the_text_says_when_and_what_failed(self) -> None:
        assert deferral(self.failed(2), "new", NOW, "dapr-1") == (
            "the restart was undone 2 times: no sidecar; next try after 2026-01-01 00:01:00+00:00, "
            "sooner if Dapr's control plane changes"
        )
        assert "was undone: no sidecar" in deferral(self.failed(), "new", NOW, "dapr-1")

    def test_a_change_of_the_control_plane_ends_all_but_the_shortest_wait(self) -> None:
        template = self.failed(9)
        assert deferral(template, "new", NOW + timedelta(seconds=29), "dapr-2")
        assert deferral(template, "new", NOW + timedelta(seconds=30), "dapr-2") == ""

    def test_other_content_and_a_clock_that_was_set_back_are_not_deferred(self) -> None:
        assert deferral(self.failed(9), "newer", NOW, "dapr-1") == ""
        assert deferral(self.failed(9), "new", NOW - timedelta(hours=1), "dapr-1") == ""
        assert deferral(Template("old", Record("new", "old")), "new", NOW, "dapr-1") == ""

    @pytest.mark.parametrize(
        "text", ['{"digest":"new","failed":"2026-01-01T00:00:00"}', '{"digest":"new","failed":"now"}', "[]", ""]
    )
    def test_a_record_that_others_wrote_is_none(self, text: str) -> None:
        with pytest.raises(msgspec.MsgspecError):
            msgspec.json.decode(text, type=Record)

    def test_a_long_reason_is_cut(self) -> None:
        assert len(failed_record(Template(), "new", "x" * 9999, NOW, "").reason) == 300
