//! Draws charts as SVG, without scripts and fonts.

/// The name of a line in a chart, and its points.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 36.0;
const PLOT: (f64, f64) = (480.0, 240.0);
const COLOURS: [&str; 6] = ["#0b6e4f", "#c1440e", "#2f4b9c", "#8a6d00", "#7a2e8e", "#555555"];

fn text(x: f64, y: f64, anchor: &str, content: &str) -> String {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>\n")
}

fn framed(height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        size if size >= 1e3 => format!("{} k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Lines over a logarithmic axis of sizes, from 0 upwards.
pub(crate) fn lines(title: &str, across: &str, all: &[Line]) -> String {
    let points =
        || all.iter().flat_map(|line| &line.points).filter(|(x, y)| *x > 0.0 && y.is_finite());
    let least = points().map(|(x, _)| x.log10()).fold(f64::INFINITY, f64::min);
    let most = points().map(|(x, _)| x.log10()).fold(f64::NEG_INFINITY, f64::max);
    let top = points().map(|(_, y)| *y).fold(0.0, f64::max);
    if !least.is_finite() || top <= 0.0 {
        return framed(TOP, &text(LEFT, 20.0, "start", title));
    }
    let at = |(x, y): &(f64, f64)| {
        let share = if most > least { (x.log10() - least) / (most - least) } else { 0.5 };
        (LEFT + share * PLOT.0, TOP + PLOT.1 * (1.0 - y / (top * 1.05)))
    };
    let mut body = text(LEFT, 20.0, "start", title);
    for step in 0..=4 {
        let value = top * 1.05 * f64::from(step) / 4.0;
        let y = TOP + PLOT.1 * (1.0 - f64::from(step) / 4.0);
        body.push_str(&format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n",
            LEFT + PLOT.0
        ));
        body.push_str(&text(LEFT - 6.0, y + 4.0, "end", &short(value)));
    }
    let mut sizes: Vec<f64> = points().map(|(x, _)| *x).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    for size in sizes {
        let (x, _) = at(&(size, 0.0));
        body.push_str(&text(x, TOP + PLOT.1 + 18.0, "middle", &short(size)));
    }
    body.push_str(&text(LEFT + PLOT.0 / 2.0, TOP + PLOT.1 + 36.0, "middle", across));
    for (number, (line, colour)) in all.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let places: Vec<(f64, f64)> =
            line.points.iter().filter(|(_, y)| y.is_finite()).map(at).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        body.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            path.join(" ")
        ));
        for (x, y) in places {
            body.push_str(&format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\n"
            ));
        }
        let y = TOP + 12.0 + 18.0 * number as f64;
        body.push_str(&format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\n",
            LEFT + PLOT.0 + 12.0,
            y - 9.0
        ));
        body.push_str(&text(LEFT + PLOT.0 + 28.0, y, "start", &line.name));
    }
    framed(TOP + PLOT.1 + 50.0, &body)
}

/// A bar for each value.
pub(crate) fn bars(title: &str, all: &[(String, f64)]) -> String {
    let most =
        all.iter().map(|(_, value)| *value).filter(|value| value.is_finite()).fold(0.0, f64::max);
    let mut body = text(12.0, 20.0, "start", title);
    let mut y = TOP;
    for (name, value) in all.iter().filter(|(_, value)| value.is_finite()) {
        let length = if most > 0.0 { 360.0 * value / most } else { 0.0 };
        let colour = if name.starts_with("leasehold") { COLOURS[0] } else { COLOURS[5] };
        body.push_str(&text(240.0, y + 14.0, "end", name));
        body.push_str(&format!(
            "<rect x=\"248\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"18\" fill=\"{colour}\"/>\n"
        ));
        body.push_str(&text(254.0 + length, y + 14.0, "start", &short(*value)));
        y += 24.0;
    }
    framed(y + 12.0, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_mark_for_each_value_and_no_text_of_its_names_is_markup() {
        let line =
            |name: &str| Line { name: name.to_owned(), points: vec![(1.0, 2.0), (1e3, 4.0)] };
        let chart = lines("a < b", "sizes", &[line("x"), line("y")]);
        assert_eq!(chart.matches("<circle").count(), 4);
        assert!(chart.contains("a &lt; b"));
        let chart = bars("c", &[("one".to_owned(), 1.0), ("none".to_owned(), f64::NAN)]);
        assert_eq!(chart.matches("fill=\"#555555\"").count(), 1);
        assert!(!lines("nothing", "", &[]).contains("NaN"));
    }
}
