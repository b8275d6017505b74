"""How the page of a study looks: one column on a phone, figures side by side on a desktop."""

CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem 1rem 4rem; max-width: 78rem; background: #fff; color: #222;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .2rem 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .5rem; padding-top: .6rem; border-top: 1px solid #ddd; }
p, li { max-width: 46rem; }
p { margin: .5rem 0; }
ul { margin: .4rem 0; padding-left: 1.2rem; }
.quiet, figcaption { color: #666; font-size: .9rem; }
.warn { border-left: 4px solid #d55e00; background: #fdf3ec; padding: .4rem .8rem; overflow-wrap: anywhere; }
.answer { font-size: 1.05rem; }
.box { overflow-x: auto; -webkit-overflow-scrolling: touch; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .88rem; }
th, td { text-align: left; vertical-align: top; padding: .32rem .8rem .32rem 0; border-bottom: 1px solid #e6e6e6; }
th { font-weight: 600; white-space: nowrap; }
thead th { color: #666; font-weight: 500; position: sticky; top: 0; background: #fff; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.reason { min-width: 19rem; max-width: 44rem; color: #444; }
td.name, th.name { max-width: 18rem; overflow-wrap: anywhere; white-space: normal; min-width: 8rem; }
.tag { display: inline-block; padding: 0 .5em; border-radius: .7em; background: #e8f1f8; font-weight: 600;
  white-space: nowrap; }
.tag.none { background: #fdeee3; }
nav a { color: #0060a0; margin-right: 1.1rem; white-space: nowrap; text-decoration: none; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr));
  gap: 1rem 1.5rem; align-items: start; }
figure { margin: .6rem 0; }
figure svg { width: 100%; max-width: 34rem; height: auto; display: block; }
dt { font-weight: 600; margin-top: .5rem; }
dd { margin: 0; max-width: 46rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: #0060a0; }
code { font-size: .92em; }
@media (max-width: 40rem) {
  body { padding: .8rem .75rem 3rem; } h1 { font-size: 1.35rem; }
  table.cards thead { display: none; }
  table.cards, table.cards tbody, table.cards tr { display: block; }
  table.cards tr { border-bottom: 1px solid #ddd; padding: .6rem 0; }
  table.cards th, table.cards td { display: inline; border: 0; padding: 0 .6rem 0 0; max-width: none; min-width: 0; }
  table.cards td.n:not(:empty)::before { content: "scale "; }
  table.cards td.reason { display: block; padding-top: .25rem; }
}
@media print { details { display: block; } .box { overflow: visible; } }
"""
