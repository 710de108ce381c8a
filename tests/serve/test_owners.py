"""Whose texts draft for whom, over HTTP."""

import json

import pytest
from helpers.answers import counters
from helpers.asking import TURN, body, post

from pyspec.batch import Settings
from pyspec.requests.bodies import ChatBody, CompletionBody, decoded
from pyspec.sampling.options import Sampling
from pyspec.serve.messages import MessagesBody
from pyspec.serve.responses import ResponsesBody


def test_a_server_drafts_for_the_same_user_only(serve):
    server = serve(length="fixed:8")
    asked = {"model": "tiny", "prompt": "ab", "temperature": 1.2, "seed": 5, "max_tokens": 80}

    def accepted(**who):
        status, told = post(server, json.dumps({**asked, **who}).encode(), "/v1/completions")
        assert status == 200
        return told["speculation"]["accepted"]

    alone = accepted(user="one")
    assert accepted(user="two") == accepted() == accepted(safety_identifier="three") == alone
    assert min(accepted(user="one"), accepted()) > alone + 30
    assert accepted(user="four") == alone


def test_a_user_is_one_of_its_keys_holder(read):
    server, cached = read(parallel=8, key="one\ntwo\n\n")
    asked = [("one", {"user": "a"}), ("two", {"user": "a"}), ("one", {"user": "b"}), ("one", {}), ("two", {})]  # fmt: skip
    assert [cached(TEXT, key, **who) for key, who in asked] == [0] * 5
    for key in ("one", "two"):
        assert min(cached(TEXT, key, user="a"), cached(TEXT, key)) >= len(TEXT)
    for wrong in ("one\ntwo", "", "three"):
        assert post(server, body(), Authorization=f"Bearer {wrong}".replace("\n", " "))[0] == 401


def test_every_interface_names_its_user():
    for kind, asked in (
        (ChatBody, {"messages": TURN, "user": "one"}),
        (CompletionBody, {"prompt": "a", "safety_identifier": "one", "user": "two"}),
        (ResponsesBody, {"input": "a", "user": "one"}),
        (MessagesBody, {"messages": TURN, "max_tokens": 1, "metadata": {"user_id": "one"}}),
    ):
        assert decoded(kind, json.dumps(asked).encode()).owner == "one"


def test_an_owner_outlives_a_session():
    """Agents name a user by account and session; what was said in one session drafts in the next."""
    session = "_session_01234567-89ab-cdef-0123-456789abcdef"

    def owner(user):
        asked = {"messages": [], "max_tokens": 1, "metadata": {"user_id": user}}
        return decoded(MessagesBody, json.dumps(asked).encode()).owner

    assert owner(f"user_a_account_b{session}") == owner("user_a_account_b") != owner("user_c")
    first, second = (json.dumps({"device_id": "d", "session_id": each}) for each in "ab")
    assert owner(first) == owner(second) != owner(json.dumps({"device_id": "e"}))
    odd = json.dumps({"session_id": "x"})
    for whole in (session, f"a{session}b", "a_session_b", odd, "[1]", "5"):
        assert owner(whole) == whole


TEXT = "the secret of this house is that it has none but this one and its cellar "


@pytest.fixture
def read(serve):
    def start(**options):
        server = serve(draft="none", **options)

        def cached(text, key="", **who):
            holder = f"Bearer {key}" if key else None
            status, told = post(server, body(text, max_tokens=2, **who), Authorization=holder)
            assert status == 200
            return told["usage"]["prompt_tokens_details"]["cached_tokens"]

        return server, cached

    return start


@pytest.mark.parametrize("parallel", [1, 4, 16])
def test_what_was_read_of_a_prompt_is_its_owners(read, parallel):
    """To others, how much of a guess was read already would tell that it was right."""
    server, cached = read(parallel=parallel)
    assert cached(TEXT + "a", user="one") == 0
    rows = counters(server.batch._contexts.engine).rows[0]
    public = len(server.batch.maker.public)
    assert public < 10
    assert max(cached(TEXT + "a", user="two"), cached(TEXT + "b")) <= public
    assert counters(server.batch._contexts.engine).rows[0] - rows > 2 * len(TEXT)
    assert cached(TEXT + "b", user="three") <= public
    if parallel > 2:
        assert min(cached(TEXT + "c", user="one"), cached(TEXT + "c")) >= len(TEXT)


@pytest.mark.parametrize("parallel", [1, 4])
def test_what_the_server_says_to_all_is_read_once(read, parallel):
    system = "you are a helpful machine of few words, and polite"
    settings = Settings(Sampling(temperature=0.0, seed=1), max_tokens=24, system=system)
    server, cached = read(parallel=parallel, settings=settings)
    public = len(server.batch.maker.public)
    assert cached(TEXT, user="one") == 0
    assert cached(TEXT, user="two") == public > len(system)
    assert cached("another", user="three") == public
    # the owners' own texts stay whole meanwhile, in memory where there is no other place
    assert cached(TEXT + "x", user="one") >= public + len(TEXT)


def test_prompts_of_two_owners_that_come_at_once_wait_for_each_other_no_more(read):
    server, _ = read()
    turns = [{"role": "user", "content": TEXT}]
    jobs = [ChatBody(messages=turns, user=who) for who in ("one", "two", "two")]
    made = [server.app.state.fleet.default._answers(each, "x")[0] for each in jobs]
    for job, asked in zip(made, jobs):
        job.owner = asked.owner
    server.batch.prepare()
    scheduler = server.batch._scheduler
    scheduler._start(made[0])
    assert [scheduler._fits(job) for job in made] == [False, True, True]
    scheduler.abandon()


def test_a_file_of_prompts_holds_no_users_text(read, tmp_path):
    """The next process could not tell whose it is."""
    path = tmp_path / "kept"
    for who in ({"user": "one"}, {}):
        server, cached = read(prompt_cache=path)
        assert cached(TEXT, **who) == 0
        server.close()
    _, cached = read(prompt_cache=path)
    assert cached(TEXT, user="one") == 0
    assert cached(TEXT) > len(TEXT)
