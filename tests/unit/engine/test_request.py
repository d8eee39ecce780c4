from engine.request import Chat, ChatImage, GenerationRequest, Message, Priority, SamplingParams


def test_sampling_defaults_are_the_public_ones() -> None:
    # R9: 1.0 is the default temperature, and nothing is penalised or cut.
    sampling = SamplingParams()
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, -1)
    assert (sampling.repetition_penalty, sampling.min_p, sampling.seed) == (1.0, 0.0, None)


def test_temperature_zero_differs_from_the_default() -> None:
    # R9
    assert SamplingParams.from_wire(SamplingParams(temperature=0.0).to_wire()).temperature == 0.0


def test_each_request_has_its_own_id() -> None:
    assert len({GenerationRequest(prompt="x").request_id for _ in range(100)}) == 100


def test_priorities_order_interactive_before_jobs_before_batches() -> None:
    assert sorted(Priority) == [Priority.INTERACTIVE, Priority.JOB, Priority.BATCH]


def test_chats_with_the_same_turns_are_equal() -> None:
    assert Chat((Message("user", "Hi"),)) == Chat((Message("user", "Hi", None),))


def test_message_has_a_marker_in_the_place_of_each_image() -> None:
    images = (ChatImage("a", 0), ChatImage("b", 2), ChatImage("c", 2), ChatImage("d", 5))
    message = Message("user", "hello", images=images)
    assert message.to_template("<i>")["content"] == "<i>he<i><i>llo<i>"
    assert message.to_template()["content"] == "hello"
    assert Chat((message, Message("user", "x"), message)).images == images * 2
