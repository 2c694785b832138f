//! The rolling losses as an SVG figure: lines over the stream position, what happens marked, a legend that says which is which.

use super::results::{ROLLING, Series};
use std::fmt::Write as _;

/// Okabe and Ito's palette (2008), which colour-blind people tell apart.
const COLOURS: [&str; 7] = ["#000000", "#d55e00", "#0072b2", "#cc79a7", "#009e73", "#e69f00", "#56b4e9"];
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
/// The plot's edges: left, right, top, bottom.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 112.0;
const BOTTOM: f64 = HEIGHT - 56.0;
/// The legend: entries of a line, its height, and its first baseline.
const LEGEND_ENTRIES: usize = 3;
const LEGEND_LINE: f64 = 20.0;
const LEGEND_TOP: f64 = 74.0;

/// The rolling loss of each series against the stream position, the first evictions and the trained length marked.
pub fn svg(series: &[Series], trained_length: usize) -> String {
    let lines: Vec<Vec<(f64, f64)>> = series.iter().map(points).collect();
    let end = series.iter().map(|one| one.nll.len()).max().unwrap_or(0).max(1) as f64;
    let losses = || lines.iter().flatten().map(|point| point.1).filter(|loss| loss.is_finite());
    let low = losses().fold(f64::INFINITY, f64::min).min(1e9).floor();
    let high = losses().fold(low + 1.0, f64::max).ceil();
    let x = |position: f64| LEFT + position / end * (RIGHT - LEFT);
    let y = |loss: f64| BOTTOM - (loss - low) / (high - low) * (BOTTOM - TOP);

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>Loss by stream position, mean of the last {ROLLING} tokens</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"18\">Loss, mean of the last {ROLLING} tokens</text>\n\
         <text x=\"{LEFT}\" y=\"48\" fill=\"#555555\">nats a token; lower is better</text>\n\
         <text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\" fill=\"#555555\">stream position, tokens</text>\n",
        HEIGHT - 14.0
    );
    // Writing to a string cannot fail.
    for loss in ticks(low, high) {
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {0:.1}H{RIGHT}\" stroke=\"#e0e0e0\"/><text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{loss}</text>",
            y(loss),
            LEFT - 8.0,
            y(loss) + 4.0
        );
    }
    for position in ticks(0.0, end) {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{position}</text>",
            x(position),
            BOTTOM + 20.0
        );
    }
    let mut marks: Vec<(usize, &str)> = Vec::new();
    for eviction in series.iter().filter_map(|one| one.eviction) {
        // Those of caches that were given sinks of their own are a few tokens earlier: one mark does for both.
        if !marks.iter().any(|mark| x(mark.0.abs_diff(eviction) as f64) - LEFT < 8.0) {
            marks.push((eviction, "first eviction"));
        }
    }
    marks.push((trained_length, "trained length"));
    for (at, what) in marks.into_iter().filter(|mark| (mark.0 as f64) < end) {
        let _ = writeln!(
            out,
            "<path d=\"M{0:.1} {TOP}V{BOTTOM}\" stroke=\"#888888\" stroke-dasharray=\"4 4\"/>\
             <text x=\"{1:.1}\" y=\"{2}\" fill=\"#555555\">{what}, {at}</text>",
            x(at as f64),
            x(at as f64) + 5.0,
            BOTTOM - 8.0
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let path: Vec<String> = line.iter().map(|(at, loss)| format!("{:.1} {:.1}", x(*at), y(*loss))).collect();
        if !path.is_empty() {
            let colour = COLOURS[index % COLOURS.len()];
            let _ = writeln!(
                out,
                "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>",
                path.join("L")
            );
        }
    }
    for (index, one) in series.iter().enumerate() {
        let left = LEFT + (index % LEGEND_ENTRIES) as f64 * (RIGHT - LEFT) / LEGEND_ENTRIES as f64;
        let base = LEGEND_TOP + LEGEND_LINE * (index / LEGEND_ENTRIES) as f64;
        let _ = writeln!(
            out,
            "<path d=\"M{left:.1} {}h22\" stroke=\"{}\" stroke-width=\"3\"/><text x=\"{:.1}\" y=\"{base}\">{}</text>",
            base - 4.0,
            COLOURS[index % COLOURS.len()],
            left + 30.0,
            escaped(&one.name)
        );
    }
    out + "</svg>\n"
}

/// At most one point for each unit of the figure's width: more cannot be told apart.
fn points(series: &Series) -> Vec<(f64, f64)> {
    let every = series.nll.len().div_ceil(WIDTH as usize).max(1);
    let rolling = series.rolling().into_iter().enumerate().filter_map(|(at, loss)| loss.map(|loss| (at as f64, loss)));
    let points: Vec<(f64, f64)> = rolling.collect();
    // Of a series that was measured here and there all are few enough.
    let every = if points.len() <= WIDTH as usize { 1 } else { every };
    points.into_iter().step_by(every).collect()
}

/// Round numbers from `low` to `high`, some five to ten of them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    // Rounded, or a sum of tenths would show.
    (first..=last).map(|n| (n as f64 * step * 1e6).round() / 1e6).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 4095.0), [0.0, 1000.0, 2000.0, 3000.0, 4000.0]);
        assert_eq!(ticks(2.0, 4.0), [2.0, 2.5, 3.0, 3.5, 4.0]);
        assert_eq!(ticks(0.0, 0.3)[3], 0.15);
    }

    #[test]
    fn a_figure_names_what_it_shows() {
        let series = |name: &str, nll: Vec<Option<f64>>, eviction| Series {
            name: name.to_owned(),
            nll,
            eviction,
            milliseconds: 0.0,
            bytes: 0,
        };
        let figure = svg(
            &[
                series("dense", vec![Some(2.0); 300], None),
                series("window:100 & <more>", vec![Some(3.0); 300], Some(100)),
                series("recompute", vec![None; 300], Some(100)),
            ],
            8192,
        );
        assert_eq!(figure.matches("first eviction, 100").count(), 1);
        assert!(figure.contains("window:100 &amp; &lt;more&gt;"));
        assert!(!figure.contains("trained length") && !figure.contains("NaN"));
        // Two lines, and three of the legend.
        assert_eq!(figure.matches("stroke-width=\"1.8\"").count(), 2);
        assert_eq!(figure.matches("stroke-width=\"3\"").count(), 3);
    }
}
