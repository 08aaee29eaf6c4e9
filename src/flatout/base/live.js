// Keeps a live page up to date: takes what the watcher sends. `curves` is in charts.js, which runs before.
(() => {
  const said = document.getElementById("live-said");
  const RETRY_MS = 5000;
  const asked = new Set();  // curves that the page did not know; each is asked for once
  let source = null, cursor = curves.cursor, retry = 0, over = "";

  const say = (words) => { said.textContent = words; said.hidden = !words; };
  const put = (parts) => {
    for (const [name, html] of Object.entries(parts)) {
      const place = document.getElementById(`live-${name}`);
      const open = [...place.querySelectorAll("details")].map((one) => one.open);
      place.innerHTML = html;  // the watcher has escaped it, and nothing in it can run: see the page's policy
      place.querySelectorAll("details").forEach((one, index) => { one.open = Boolean(open[index]); });
    }
  };
  const hear = (kind, act) => source.addEventListener(kind, (event) => {
    cursor = event.lastEventId || cursor;
    act(JSON.parse(event.data));
  });
  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }
  function open() {
    close();
    source = new EventSource(`${location.pathname.replace(/\/$/, "")}/events?after=${encodeURIComponent(cursor)}`);
    source.onopen = () => say("");
    source.onerror = () => {
      say(over || "The watcher does not answer; the page shows what it got before. Trying again.");
      if (source.readyState === EventSource.CLOSED) again();
    };
    hear("whole", ({ parts, curves: data }) => { put(parts); curves.load(data); });
    hear("parts", put);
    hear("points", ({ parts, news }) => {
      put(parts);
      const unknown = curves.grow(news);
      if (unknown && !asked.has(unknown)) {
        asked.add(unknown);
        cursor = "";
        open();
      }
    });
    hear("said", ({ words }) => say(words));
    hear("bye", ({ words }) => { over = words; say(words); again(); });
  }
  function again() {
    close();
    retry = setTimeout(open, RETRY_MS);
  }
  // a page that nobody looks at takes no connection and no work; it goes on where it was
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  addEventListener("pagehide", close);
  if (!document.hidden) open();
})();
