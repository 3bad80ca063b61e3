#include "io/report/html_page.hpp"

#include <fmt/format.h>

#include "io/report/svg_plot.hpp"

namespace tessera {
namespace {

// Three colours that the colour-blind can tell apart, on white and on black. Plots are about as wide as a phone's
// screen, so that their numbers can be read there; wider screens have two columns of plots.
constexpr const char* style = R"(
:root {
  color-scheme: light dark;
  --ink: #1c2024; --soft: #667078; --line: #e3e6e8; --s0: #1f6fb4; --s1: #d4731c; --s2: #1d8a63;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #98a1a8; --line: #30363b; --s0: #62aaf0; --s1: #ef9a4d; --s2: #4cc79a; }
}
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1.5em; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.key { color: var(--soft); font-size: 12px; }
.wide, pre { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 0.1em 0.7em; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, .starts * { text-align: left; }
.starts td { white-space: normal; overflow-wrap: anywhere; vertical-align: top; }
.starts th { vertical-align: top; }
h2 { font-size: 1.1em; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.plots { gap: 1em 2em; margin: 1.5em 0; }
svg { width: 100%; }
.title { font-weight: 600; font-size: 14px; fill: var(--ink); }
.unit, .tick { font-weight: 400; font-size: 12px; fill: var(--soft); }
path { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.grid { stroke: var(--line); stroke-width: 1; }
.restart { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 4; }
.save { stroke: var(--s2); stroke-width: 2; }
.removed { stroke: var(--soft); stroke-width: 1; }
.bar { fill: var(--s0); }
.range { stroke: var(--ink); stroke-width: 1.5; }
.s0 { stroke: var(--s0); }
.s1 { stroke: var(--s1); }
.s2 { stroke: var(--s2); }
@media (max-width: 600px) {
  .starts tr, .starts td, .starts th { display: block; border: 0; padding: 0; }
  .starts tr { border-bottom: 1px solid var(--line); padding: 0.4em 0; }
  .starts tr:first-child, .starts td:empty { display: none; }
  .starts th:before { content: "start "; }
  .starts td:nth-child(2):before { content: "steps "; }
  .starts td:nth-child(3):before { content: "begun "; }
  .starts td:nth-child(4):before { content: "on "; }
  .starts td:nth-child(5):before { content: "ended: "; }
  .starts td:nth-child(6):before { content: "began with: "; }
  body { margin: 1em auto; }
  dl { gap: 0.2em 1em; }
}
)";

}  // namespace

std::string html_head(const std::string& title, const std::string& rules) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{1}{2}</style>\n<h1>{0}</h1>\n",
      escaped(title), style, rules);
}

}  // namespace tessera
