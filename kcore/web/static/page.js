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

// Lines differ in color and, for who does not see that, in their dashes.
function lineStyle(number, count) {
  if (count === 1) return { stroke: color("--plot") };
  const lightness = matchMedia("(prefers-color-scheme: dark)").matches ? 68 : 38;
  return { stroke: `hsl(${(200 + 137 * number) % 360} 65% ${lightness}%)`, dash: [[], [10, 4], [3, 3]][number % 3] };
}

async function draw(figure) {
  const response = await fetch(figure.dataset.plot);
  if (!response.ok) return;
  const { t, lines } = await response.json();
  const data = [t, ...lines.map((line) => line.y)];
  const drawn = JSON.stringify([figure.clientWidth, ...lines.map((line) => line.label)]);
  if (figure.plot && figure.drawn === drawn) {
    figure.plot.setData(data);
    return;
  }
  if (figure.plot) figure.plot.destroy();
  figure.drawn = drawn;
  const width = figure.clientWidth;
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const numbers = { ...axis, size: 70, values: (_, values) => values.map((value) => value.toLocaleString()) };
  const series = lines.map(({ label }, number) => ({ label, width: 2, spanGaps: false, ...lineStyle(number, lines.length) }));
  figure.plot = new uPlot(
    { width, height: 200, series: [{ label: "time" }, ...series], axes: [axis, numbers], scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } } },
    data, figure);
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
  for (const figure of document.querySelectorAll("[data-plot]")) figure.drawn = "";
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
