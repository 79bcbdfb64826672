// SPDX-License-Identifier: Apache-2.0

import { clock, colour, rate, short } from "./format.js";

const HEIGHT = 220;

// Chart draws throughput over the window.
export class Chart {
  constructor(element, window) {
    this.element = element;
    this.window = window;
    this.data = [[], [], []];
    this.build();
    new ResizeObserver(() => {
      if (this.plot.width !== element.clientWidth) {
        this.plot.setSize({ width: element.clientWidth, height: HEIGHT });
      }
    }).observe(element);
  }

  // build creates the plot again, with the current colours.
  build() {
    this.plot?.destroy();
    const series = (label, name) => ({
      label, stroke: colour(name), width: 2, points: { show: false },
      value: (_, v) => v === null || v === undefined ? "" : rate(v),
    });
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.element.clientWidth,
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      scales: {
        x: { range: () => this.window },
        y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1000] },
      },
      axes: [
        { ...axis, space: 80, size: 34, values: (_, splits) => splits.map(clock) },
        { ...axis, size: 80, values: (_, splits) => splits.map(v => short(rate(v))) },
      ],
      series: [
        { label: "time", value: (_, t) => t === null || t === undefined ? "" : clock(t) },
        series("read", "--read"),
        series("write", "--write"),
      ],
      cursor: { drag: { x: false, y: false } },
    }, this.data, this.element);
  }

  draw(window, data) {
    this.window = window;
    this.data = data;
    this.plot.setData(data);
    if (this.plot.cursor.left < 0) { // without a pointer, the legend shows the newest values
      this.plot.setLegend({ idx: data[0].length - 1 });
    }
  }
}
