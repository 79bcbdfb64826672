// SPDX-License-Identifier: Apache-2.0

import { Chart } from "./chart.js";
import { follow } from "./feed.js";
import { clock } from "./format.js";
import { Heat } from "./heat.js";
import { key, Past } from "./past.js";
import { drawStages, SessionTable } from "./tables.js";

const $ = id => document.getElementById(id);

let picked = ""; // key of the picked session; "" for all
let connected = false;
let arrived = performance.now(); // time of the newest sample's arrival
let waiting = false; // for an animation frame

const past = new Past();
const chart = new Chart($("throughput"), past.window());
const heat = new Heat($("heat"), $("heat-scale"), $("heat-at"), past.window());
const sessions = new SessionTable($("sessions"), name => {
  picked = picked === name ? "" : name;
  drawSoon();
});

// drawSoon draws in the next animation frame, once for all samples that arrive before it.
function drawSoon() {
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }
}

function draw() {
  const sample = past.newest();
  if (!sample) {
    return;
  }
  if (picked && !sample.sessions.some(s => key(s) === picked)) {
    picked = "";
  }
  const of = picked ? "of " + picked.slice(picked.indexOf("/") + 1) : sample.sessions.length > 1 ? "of all sessions" : "";
  $("throughput-of").textContent = $("latency-of").textContent = of;
  drawState(sample);
  sessions.draw(sample.sessions, picked);
  chart.draw(past.window(), past.throughput(picked));
  $("no-latencies").hidden = !sample.no_latencies;
  $("no-latencies").textContent = "No latencies: " + sample.no_latencies;
  $("latency").hidden = Boolean(sample.no_latencies);
  heat.draw(past.window(), past.heat(picked));
  const shown = Past.of(sample, picked).find(s => s.device);
  $("stages-section").hidden = !shown || Boolean(sample.no_latencies);
  if (shown) {
    $("stages-of").textContent = `of ${shown.name}, in the last ${sample.seconds.toFixed(1)} s`;
    drawStages($("stages"), shown);
  }
}

// drawState shows RDMA devices, problems, and a hint if there is no session.
function drawState(sample) {
  $("links").textContent = sample.rdma_devices?.length
    ? sample.rdma_devices.flatMap(l => l.ports.map(p =>
        `${l.name}${l.ports.length > 1 ? "/" + p.port : ""}${p.netdev ? " on " + p.netdev : ""} ${p.state}`)).join(", ")
    : "no RDMA device";
  $("problems").hidden = sample.problems.length === 0;
  $("problems").replaceChildren(...sample.problems.map(text => {
    const li = document.createElement("li");
    li.textContent = text;
    return li;
  }));
  $("nothing").hidden = sample.sessions.length > 0;
  $("nothing").textContent = sample.module_loaded
    ? "No session. Attach one: krpingctl client --addr ADDRESS --block VOLUME"
    : "The module is not loaded. Load it: modprobe rdma_krping";
}

// drawConnection shows whether samples arrive from the agent.
function drawConnection() {
  const sample = past.newest();
  const silent = sample && performance.now() - arrived > 1000 * Math.max(5, 3 * sample.seconds);
  const gone = !connected || silent;
  const line = $("connection");
  line.className = gone ? "gone" : "live";
  if (!gone) {
    line.textContent = "live";
  } else if (sample) {
    line.textContent = (connected ? "no sample since " : "agent gone since ") + clock(sample.end);
  } else {
    line.textContent = connected ? "waiting for a sample" : "agent does not respond";
  }
}

follow("api/live", sample => {
  past.add(sample);
  arrived = performance.now();
  drawSoon();
}, isConnected => {
  connected = isConnected;
  drawConnection();
});
setInterval(drawConnection, 1000);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  chart.build();
  drawSoon();
});
