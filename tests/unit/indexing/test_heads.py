"""What heads add to the sums of live sources."""

from app.indexing.source import LiveSum, head_sum


def test_a_head_counts_where_it_differs_from_the_revision() -> None:
    assert head_sum("p", "s", "1", None) == head_sum("p", "s", "1", "1") == LiveSum()
    counted = head_sum("p", "s", "1", "2")
    assert (counted.sources, counted.chunks, counted.terms) == (0, 0, 0)
    assert counted.lanes != LiveSum().lanes


def test_each_head_has_lanes_of_its_own_whatever_it_is_newer_than() -> None:
    heads = [("p", "s", "2"), ("p", "s", "3"), ("p", "t", "2"), ("q", "s", "2"), ("ps", "", "2")]
    found = {head_sum(project, name, "1", revision) for project, name, revision in heads}
    assert len(found) == len(heads)
    assert head_sum("p", "s", "0", "2") == head_sum("p", "s", "1", "2")


def test_a_head_that_goes_leaves_the_sums_as_they_were() -> None:
    before = LiveSum(1, 2, 3, (2**64 - 1, 0, 5, 2**63))
    head = head_sum("p", "s", "1", "2")
    assert before.plus(head).minus(head) == before != before.plus(head)
