"""Lesson 11: many requests to a server, and what goes wrong on the way.

A file of requests in OpenAI's batch format, one a line, becomes a file of answers: as many at a time as you like, again
where that may help, and from where it stopped when it is started again.

    pip install 'forktree[server,openai]'
    python tutorials/11_many_requests.py
"""

import asyncio
import json
import tempfile
from pathlib import Path

import openai
from serving import served

KEY = "a-key-of-yours"

# --- One request ----------------------------------------------------------------------------------------------
#
# The client makes a request again where that may help: the server did not answer, answered 5xx, or 429 (too many
# requests), then after the time that its Retry-After names. All else is for you. A wrong key is wrong for every
# request. A prompt that is too long has to become shorter: here the oldest turns go, the system's stays. An answer
# that takes too long may be asked for once more with more patience; the server has dropped the first one's work.


def ask(client: openai.OpenAI, messages: list[dict[str, str]], timeouts_s: tuple[float, ...] = (60,)) -> str:
    """The answer, to as much of the conversation as fits, within the last of the timeouts."""
    messages = list(messages)
    patience = iter(timeouts_s)
    timeout_s = next(patience)
    while True:
        try:
            answer = client.with_options(
                timeout=timeout_s, max_retries=2 if timeout_s > 1 else 0
            ).chat.completions.create(model="smol", messages=messages, max_tokens=12, temperature=0)
        except openai.BadRequestError as error:
            if error.code != "context_length_exceeded" or len(messages) < 3:
                raise
            print(f"  {error.body['message']}; without the oldest turn:")
            del messages[1]
        except openai.APITimeoutError:
            print(f"  nothing after {timeout_s} s")
            timeout_s = next(patience, None)
            if timeout_s is None:
                raise
        else:
            return answer.choices[0].message.content


def handle_errors(url: str) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as stranger:
        try:
            ask(stranger, [question])
        except openai.AuthenticationError as error:
            print(f"a wrong key: {error.body['message']}")
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        pasted = {"role": "user", "content": "A log of mine: " + "all is well. " * 4000}
        turns = [{"role": "system", "content": "Be brief."}, pasted, question]
        print("a long conversation:", ask(client, turns), sep="\n  ")
        print("an impatient client:", ask(client, [question], timeouts_s=(0.001, 60)), sep="\n  ")


# --- A file of them -------------------------------------------------------------------------------------------
#
# One task a line, a bounded number at a time; the server computes them together. A refusal is that line's answer. What
# failed on the way has none yet, and is asked for by the next run. A key or a model that is wrong ends the run.


async def answer_line(client: openai.AsyncOpenAI, line: str) -> dict | None:
    """A line of the file of answers; None if there is no answer yet."""
    asked = json.loads(line)
    try:
        response = await client.chat.completions.with_raw_response.create(**asked["body"])
        status, body = response.status_code, json.loads(response.text)
    except (openai.RateLimitError, openai.InternalServerError, openai.APIConnectionError):
        return None
    except openai.BadRequestError as error:
        status, body = error.status_code, {"error": error.body}
    told = {"status_code": status, "body": body}
    return {"id": f"batch_req_{asked['custom_id']}", "custom_id": asked["custom_id"], "response": told, "error": None}


async def run_batch(url: str, requests: Path, answers: Path, *, num_at_once: int = 8, retries: int = 4) -> None:
    """Answer what has no answer yet. Each is written when it is there, so that a run may be stopped at any time."""
    done = set()
    if answers.exists():
        done = {json.loads(line)["custom_id"] for line in answers.read_text(encoding="utf-8").splitlines()}
    lines = requests.read_text(encoding="utf-8").splitlines()
    left = [line for line in lines if json.loads(line)["custom_id"] not in done]
    places = asyncio.Semaphore(num_at_once)

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=retries) as client:

        async def answer(line: str) -> None:
            async with places:
                told = await answer_line(client, line)
            if told is not None:
                file.write(json.dumps(told) + "\n")
                file.flush()

        with answers.open("a", encoding="utf-8") as file:
            async with asyncio.TaskGroup() as tasks:
                for line in left:
                    tasks.create_task(answer(line))


def write_requests(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(24):
            body = {"model": "smol", "messages": [{"role": "user", "content": f"{number} and one make"}]}
            body |= {"max_tokens": 4 if number else 0, "temperature": 0}  # the first is wrong: there is no such length
            line = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def batch(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        requests, answers = Path(folder) / "requests.jsonl", Path(folder) / "answers.jsonl"
        write_requests(requests)
        for retries in (0, 4):  # the server lets 20 requests in at once, and then two a second
            asyncio.run(run_batch(url, requests, answers, retries=retries))
            told = [json.loads(line)["response"]["status_code"] for line in answers.read_text().splitlines()]
            print(
                f"with {retries} retries: {told.count(200)} answers, {told.count(400)} refused, {24 - len(told)} left"
            )


def main(url: str) -> None:
    handle_errors(url)
    print()
    batch(url)


with served(KEY, "--rpm", "120") as address:
    main(address)
