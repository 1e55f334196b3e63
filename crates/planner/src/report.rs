//! A plan as one page of HTML that needs nothing else, and prints well.

use crate::plan::{Curve, Plan, Tone};
use crate::value::human;

const STYLE: &str = "\
:root{--text:#1a1f26;--muted:#5b6673;--line:#e1e5ea;--bg:#fff;--s0:#2f72d6;--s1:#d0812a;--s2:#2b9a66;--ok:#16794a;--warn:#9a5b00;--bad:#b8281f}\
@media (prefers-color-scheme:dark){@media screen{:root{--text:#e3e7ed;--muted:#939dab;--line:#272d37;--bg:#0e1116;--s0:#6aa1f4;--s1:#e9a04d;--s2:#4cc38a;--ok:#4cc38a;--warn:#e2a740;--bad:#f2746b}}}\
body{margin:2rem auto;max-width:900px;padding:0 1rem;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums}\
h1{font-size:1.4rem}h2{font-size:1.05rem;margin:1.6rem 0 .5rem;break-after:avoid}p.muted,small{color:var(--muted)}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}td.n{text-align:right;white-space:nowrap}\
.ok{color:var(--ok)}.warn{color:var(--warn)}.bad{color:var(--bad)}figure{margin:1rem 0;break-inside:avoid}svg{max-width:100%;height:auto}\
text{fill:var(--muted);font-size:11px}path{fill:none;stroke-width:1.8}.grid{stroke:var(--line)}.s0{stroke:var(--s0);color:var(--s0)}.s1{stroke:var(--s1);color:var(--s1)}.s2{stroke:var(--s2);color:var(--s2)}\
figcaption span{margin-left:1rem}tr{break-inside:avoid}@media print{body{margin:0;max-width:none}}";

/// Text inside of HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Ok => "ok",
        Tone::Warn => "warn",
        Tone::Bad => "bad",
        Tone::Plain => "",
    }
}

/// The page. `when` and `where_from` say for people when it was made and what it was asked of.
pub fn html(plan: &Plan, when: &str, where_from: &str) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Stoker plan: {kind}</title><style>{STYLE}</style></head><body><main><h1>Plan: {kind}</h1>\
         <p class=\"muted\">model {model}; {when}; {from}</p><p class=\"{tone}\"><b>{title}</b></p>",
        kind = plan.kind,
        model = plan.model,
        when = escape(when),
        from = escape(where_from),
        tone = class(plan.tone),
        title = escape(&plan.title),
    );
    let mut list = |heading: &str, lines: &[String]| {
        if !lines.is_empty() {
            let items: String = lines.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
            page.push_str(&format!("<h2>{heading}</h2><ul>{items}</ul>"));
        }
    };
    list("Why", &plan.reasons);
    let helps: Vec<String> =
        plan.changes.iter().map(|change| format!("{}: {}", change.what, change.text)).collect();
    list("What would help most", &helps);
    page.push_str("<h2>Figures</h2><table>");
    for figure in &plan.figures {
        page.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"n {}\">{}</td></tr>",
            escape(figure.label),
            class(figure.tone),
            escape(&figure.text)
        ));
    }
    page.push_str("</table>");
    for curve in &plan.curves {
        page.push_str(&svg(curve));
    }
    page.push_str("<h2>Inputs</h2><table>");
    for (name, text) in &plan.input_texts {
        page.push_str(&format!(
            "<tr><th scope=\"row\">{name}</th><td class=\"n\">{}</td></tr>",
            escape(text)
        ));
    }
    page.push_str("</table>");
    if !plan.constants.is_empty() {
        page.push_str("<h2>Constants</h2><table><tr><th>constant</th><th>assumed</th><th>measured</th><th>from</th></tr>");
        for one in &plan.constants {
            let measured = one.measured.map_or_else(|| "–".into(), |value| human(value, one.unit));
            page.push_str(&format!(
                "<tr><td>{}<br><small>{}</small></td><td>{}</td><td>{}</td><td>{}</td></tr>",
                one.name,
                escape(one.words),
                human(one.assumed, one.unit),
                measured,
                escape(&one.from)
            ));
        }
        page.push_str("</table>");
    }
    if !plan.assumptions.is_empty() {
        let items: String =
            plan.assumptions.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
        page.push_str(&format!("<h2>Assumptions</h2><ul>{items}</ul>"));
    }
    page.push_str("</main></body></html>\n");
    page
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 34.0;

/// Whether an axis is better by powers.
fn is_wide(values: &[f64]) -> bool {
    let low = values.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    values.iter().all(|value| *value > 0.0) && high / low > 100.0
}

fn svg(curve: &Curve) -> String {
    let ys: Vec<f64> =
        curve.lines.iter().flat_map(|line| &line.y).copied().filter(|value| value.is_finite()).collect();
    let (wide_x, wide_y) = (is_wide(&curve.x), is_wide(&ys) && !matches!(curve.y_unit, "share" | "nines"));
    let scale = |value: f64, is_wide: bool| if is_wide { value.max(1e-12).ln() } else { value };
    let span = |values: &[f64], is_wide: bool| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let low = if is_wide { low } else { low.min(0.0) };
        (scale(low, is_wide), scale(if high > low { high } else { low + 1.0 }, is_wide))
    };
    let ((x0, x1), (y0, y1)) = (span(&curve.x, wide_x), span(&ys, wide_y));
    let x = |value: f64| LEFT + (scale(value, wide_x) - x0) / (x1 - x0) * (WIDTH - LEFT - 12.0);
    let y = |value: f64| 8.0 + (1.0 - (scale(value, wide_y) - y0) / (y1 - y0)) * (HEIGHT - BOTTOM - 8.0);
    let back = |at: f64, is_wide: bool| if is_wide { at.exp() } else { at };
    let mut out = String::new();
    for step in 0..=4 {
        let part = f64::from(step) / 4.0;
        let value = back(y0 + (y1 - y0) * part, wide_y);
        let at = y(value);
        out.push_str(&format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - 12.0,
            LEFT - 6.0,
            at + 4.0,
            escape(&human(value, curve.y_unit))
        ));
        let value = back(x0 + (x1 - x0) * part, wide_x);
        let anchor = if step == 0 {
            "start"
        } else if step == 4 {
            "end"
        } else {
            "middle"
        };
        out.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            x(value),
            HEIGHT - 16.0,
            escape(&human(value, curve.x_unit))
        ));
    }
    let mut legend = String::new();
    for (number, line) in curve.lines.iter().enumerate() {
        let mut path = String::new();
        for (at, value) in curve.x.iter().zip(&line.y).filter(|(_, value)| value.is_finite()) {
            path.push_str(&format!(
                "{}{:.1},{:.1}",
                if path.is_empty() { "M" } else { "L" },
                x(*at),
                y(*value)
            ));
        }
        out.push_str(&format!("<path class=\"s{number}\" d=\"{path}\"/>"));
        legend.push_str(&format!("<span class=\"s{number}\">— {}</span>", escape(&line.name)));
    }
    let label = format!("{}: {} by {}", curve.title, curve.y_label, curve.x_label);
    format!(
        "<figure><figcaption><b>{}</b>{legend}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{}\">\
         {out}<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></svg></figure>",
        escape(&curve.title),
        escape(&label),
        WIDTH - 12.0,
        HEIGHT - 2.0,
        escape(curve.x_label)
    )
}
