// SPDX-License-Identifier: Apache-2.0

import { clock, colour, latency, short } from "./format.js";

// From few to many bios; reversed on a dark page.
const SHADES = ["#cde2fb", "#9cc6f5", "#6ba8ec", "#3f89de", "#256bbf", "#184f95", "#0d366b"];
const dark = matchMedia("(prefers-color-scheme: dark)");

const LEFT = 80, RIGHT = 8, BOTTOM = 22, TOP = 6; // margins, equal to those of the chart above
const CELL = 4; // minimum height of a cell in pixels
const DECADES = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12]; // ns

// bucketOf returns the position of a latency on the axis of buckets. Bucket i ends at i.
function bucketOf(ns) {
  return 8 * Math.log2(ns / 1e9);
}

function endOf(bucket) {
  return 1e9 * 2 ** (bucket / 8);
}

// Heat draws a heat map of bio latencies over the window.
export class Heat {
  constructor(canvas, scale, at, window) {
    this.canvas = canvas;
    this.scale = scale;
    this.at = at;
    this.hint = at.textContent;
    this.draw(window, []);
    canvas.addEventListener("pointermove", event => this.describe(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => { this.at.textContent = this.hint; });
    new ResizeObserver(() => this.draw([this.begin, this.end], this.columns)).observe(canvas);
  }

  draw([begin, end], columns) {
    this.begin = begin;
    this.end = end;
    this.columns = columns;
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    if (width === 0) {
      return;
    }
    this.measure(columns, width, height);
    this.canvas.width = width * devicePixelRatio;
    this.canvas.height = height * devicePixelRatio;
    const context = this.canvas.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    this.axes(context);
    this.cells(context);
    this.legend();
  }

  // measure computes the range of the axes, the number of buckets per cell, and the largest count.
  measure(columns, width, height) {
    let low = bucketOf(1e5), high = bucketOf(1e7);
    for (const column of columns) {
      for (const bucket of column.counts.keys()) {
        low = Math.min(low, bucket - 1);
        high = Math.max(high, bucket);
      }
    }
    this.low = Math.floor(low / 8) * 8;
    this.high = Math.ceil(high / 8) * 8;
    this.width = width - LEFT - RIGHT;
    this.height = height - BOTTOM - TOP;
    this.group = [1, 2, 4, 8].find(n => n * this.height / (this.high - this.low) >= CELL) ?? 8;
    this.grouped = columns.map(column => ({ ...column, counts: this.merge(column.counts) }));
    this.most = Math.max(1, ...this.grouped.map(column => Math.max(0, ...column.counts.values())));
  }

  // merge sums the counts by cell; a cell's key is its last bucket.
  merge(counts) {
    const merged = new Map();
    for (const [bucket, n] of counts) {
      const last = Math.ceil(bucket / this.group) * this.group;
      merged.set(last, (merged.get(last) ?? 0) + n);
    }
    return merged;
  }

  x(seconds) {
    return LEFT + this.width * (seconds - this.begin) / (this.end - this.begin);
  }

  y(bucket) {
    return TOP + this.height * (this.high - bucket) / (this.high - this.low);
  }

  shades() {
    return dark.matches ? [...SHADES].reverse() : SHADES;
  }

  cells(context) {
    const shades = this.shades();
    for (const column of this.grouped) {
      const left = Math.max(LEFT, Math.floor(this.x(column.begin)));
      const right = Math.max(left + 1, Math.floor(this.x(column.end)));
      for (const [bucket, n] of column.counts) {
        const part = Math.log(n) / Math.log(this.most + 1); // counts differ by powers of ten
        context.fillStyle = shades[Math.min(shades.length - 1, Math.floor(part * shades.length))];
        const top = Math.round(this.y(bucket)), bottom = Math.round(this.y(bucket - this.group));
        context.fillRect(left, top, right - left, bottom - top);
      }
    }
  }

  axes(context) {
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colour("--dim");
    context.strokeStyle = colour("--line");
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.beginPath();
    for (const ns of DECADES) {
      const bucket = bucketOf(ns);
      if (bucket >= this.low && bucket <= this.high) {
        const y = Math.round(this.y(bucket)) + 0.5;
        context.moveTo(LEFT, y);
        context.lineTo(LEFT + this.width, y);
        context.fillText(short(latency(ns)), LEFT - 8, y);
      }
    }
    context.stroke();
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    const step = [10, 20, 30, 60, 120].find(s => s * this.width / (this.end - this.begin) >= 70) ?? 300;
    for (let t = Math.ceil(this.begin / step) * step; t <= this.end; t += step) {
      const x = Math.min(this.x(t), LEFT + this.width - 26);
      if (x >= LEFT + 10) {
        context.fillText(clock(t), x, TOP + this.height + 16);
      }
    }
  }

  legend() {
    const swatches = this.shades().map(shade => {
      const swatch = document.createElement("i");
      swatch.style.background = shade;
      return swatch;
    });
    this.scale.replaceChildren("1", ...swatches, this.most + (this.most === 1 ? " bio" : " bios"));
  }

  // describe shows the time, latency and count of the cell at a position of the canvas.
  describe(x, y) {
    const seconds = this.begin + (this.end - this.begin) * (x - LEFT) / this.width;
    const column = this.grouped?.find(c => c.begin < seconds && seconds <= c.end);
    const bucket = Math.ceil((this.high - (y - TOP) / this.height * (this.high - this.low)) / this.group) * this.group;
    if (!column || y < TOP || y > TOP + this.height) {
      this.at.textContent = this.hint;
      return;
    }
    this.at.textContent = `${clock(column.end)}, ${latency(endOf(bucket - this.group))} to ${latency(endOf(bucket))}: ${column.counts.get(bucket) ?? 0} bios`;
  }
}
