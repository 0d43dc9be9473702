"""Any verb fails with a chosen errno when a test asks for it; rings that were overwritten are found out."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from pairs import End

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_QP_FATAL,
    IBV_MW_TYPE_1,
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_PKEY_INDEX,
    IBV_QP_PORT,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, MW, PD, QP, SRQ, CompChannel, QPAttr, QPInitAttr, RecvWR, SendWR, SrqInitAttr

INIT = int(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)

CALLS: dict[str, Callable[[End], object]] = {
    "alloc_pd": lambda end: PD(end.ctx),
    "reg_mr": lambda end: MR(end.pd, 4096, 1),
    "alloc_mw": lambda end: MW(end.pd, IBV_MW_TYPE_1),
    "create_comp_channel": lambda end: CompChannel(end.ctx),
    "create_cq": lambda end: CQ(end.ctx, 16),
    "resize_cq": lambda end: end.cq.resize(64),
    "create_srq": lambda end: SRQ(end.pd, SrqInitAttr()),
    "create_qp": lambda end: QP(end.pd, QPInitAttr(scq=end.cq, rcq=end.cq)),
    "modify_qp": lambda end: end.qp.modify(QPAttr(qp_state=IBV_QPS_INIT, qp_access_flags=7), INIT),
    "query_qp": lambda end: end.qp.query(),
    "query_port": lambda end: end.ctx.query_port(1),
    "query_device": lambda end: end.ctx.query_device(),
    "destroy_qp": lambda end: end.qp.close(),
    "dereg_mr": lambda end: end.mr.close(),
    "post_recv": lambda end: end.qp.post_recv(RecvWR(1)),
    "poll_cq": lambda end: end.cq.poll(1),
    "req_notify_cq": lambda end: end.cq.req_notify(),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EAGAIN])
def test_a_verb_fails_when_asked_to_and_works_again(unshaped: LocalLab, verb: str, code: int) -> None:
    end = End(unshaped, 0)
    if verb == "post_recv":
        end.qp.modify(QPAttr(qp_state=IBV_QPS_INIT, qp_access_flags=7), INIT)
    end.ctx.inject_failure(verb, code)
    with pytest.raises(VerbsError, match=f"{verb} failed as asked for") as caught:
        CALLS[verb](end)
    assert caught.value.errno == code
    CALLS[verb](end)
    end.close()


def test_after_and_count(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)
    end.ctx.inject_failure("reg_mr", errno.ENOMEM, after=2, count=3)
    outcomes = []
    for _ in range(7):
        try:
            MR(end.pd, 64, 1)
            outcomes.append("ok")
        except VerbsError:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "failed", "failed", "ok", "ok"]
    # Another context on the same device is not concerned.
    end.ctx.inject_failure("reg_mr", errno.ENOMEM)
    other = End(unshaped, 0)
    other.close()
    end.close()


def test_a_post_that_fails_posts_nothing(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)
    end.qp.connect(end.qp.endpoint())
    end.ctx.inject_failure("post_send", errno.ENOMEM)
    with pytest.raises(VerbsError) as caught:
        end.qp.post_send(SendWR(1))
    assert caught.value.errno == errno.ENOMEM
    end.qp.post_recv(RecvWR(5))
    end.qp.post_send(SendWR(2))
    assert {wc.wr_id for wc in end.wait(2)} == {2, 5}
    end.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("fly", errno.ENOMEM), "there is no verb 'fly'"), (("reg_mr", 99999), "errno 99999"), (("poll_cq", 1, -1), "-1")],
)
def test_what_makes_no_sense_is_refused(unshaped: LocalLab, arguments: tuple[str, int], words: str) -> None:
    end = End(unshaped, 0)
    with pytest.raises(VerbsError, match=words) as caught:
        end.ctx.inject_failure(*arguments)
    assert caught.value.errno == errno.EINVAL
    end.close()


def test_an_overwritten_ring_is_a_fatal_error_of_its_queue_pair(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)
    end.qp.connect(end.qp.endpoint())
    end.qp._rings.publish_sends(1 << 40)
    end.ctx._ring(end.qp.qp_num)
    event = end.ctx.get_async_event(20)
    assert event is not None
    assert (event.event_type, event.element) == (IBV_EVENT_QP_FATAL, end.qp.qp_num)
    assert end.qp.qp_state == IBV_QPS_ERR
    assert "overwritten" in end.qp.last_error()
    event.ack()
    end.close()
