// What the pages do beyond HTML: times in the reader's time zone, plots, and no refresh while somebody uses the table.
"use strict";

function localTimes(root) {
  for (const time of root.querySelectorAll("time[data-ms]")) {
    const date = new Date(Number(time.dataset.ms));
    if (!isNaN(date) && !time.title) {
      time.title = time.textContent;
      time.textContent = date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    }
  }
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

async function draw(figure) {
  const response = await fetch(figure.dataset.plot);
  if (!response.ok) return;
  const { label, t, y } = await response.json();
  const width = figure.clientWidth;
  if (figure.plot && figure.plotWidth === width) {
    figure.plot.setData([t, y]);
    return;
  }
  if (figure.plot) figure.plot.destroy();
  figure.plotWidth = width;
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const numbers = { ...axis, size: 70, values: (_, values) => values.map((value) => value.toLocaleString()) };
  const line = { label, stroke: color("--plot"), width: 2, spanGaps: false };
  figure.plot = new uPlot(
    { width, height: 200, series: [{ label: "time" }, line], axes: [axis, numbers], scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } } },
    [t, y], figure);
}

function drawAll() {
  if (document.visibilityState !== "visible") return;
  for (const figure of document.querySelectorAll("[data-plot]")) draw(figure).catch(() => {});
}

document.addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  drawAll();
  setInterval(drawAll, 5000);
});
window.addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const figure of document.querySelectorAll("[data-plot]")) figure.plotWidth = 0;
  drawAll();
});
document.addEventListener("htmx:afterSettle", (event) => localTimes(event.target.parentElement || document));
// A refresh would take the focus and the selection away.
document.addEventListener("htmx:beforeRequest", (event) => {
  const asked = event.detail.requestConfig.triggeringEvent;
  const isRefresh = event.target.id === "live" && !(asked && asked.type === "load");
  const isUsed = event.target.contains(document.activeElement) || !getSelection().isCollapsed;
  if (isRefresh && (isUsed || document.visibilityState !== "visible")) event.preventDefault();
});
