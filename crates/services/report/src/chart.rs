//! Figures of a page: curves over time, strips and bars, as SVG without a script.
//!
//! A figure fills the given width. A figure's texts are outside the SVG, in HTML, so that they keep
//! their size on narrow screens. Colours are classes in the page's style sheet.

use std::fmt::Write;

/// Height of a curve, in units of the SVG's coordinate system.
const HEIGHT: f64 = 100.0;
/// Number of colour levels of a strip.
const LEVELS: u64 = 8;

/// Returns a stepped area over bins. A bin with the value `most` has the full height. `class` sets
/// the colour; `label` describes the content.
pub fn area(bins: &[u64], most: u64, class: &str, label: &str) -> String {
    let mut path = format!("M0 {HEIGHT}");
    let mut last = None;
    for (i, &bin) in bins.iter().enumerate() {
        let y = HEIGHT - bin as f64 / most.max(1) as f64 * HEIGHT;
        let y = (y * 10.0).round() / 10.0;
        if last != Some(y.to_bits()) {
            let _ = write!(path, "H{i}V{y}");
        }
        last = Some(y.to_bits());
    }
    let _ = write!(path, "H{}V{HEIGHT}Z", bins.len());
    format!(
        "<svg class=\"area\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {} {HEIGHT}\" \
            preserveAspectRatio=\"none\"><path class=\"{class}\" d=\"{path}\"/></svg>",
        bins.len()
    )
}

/// Returns a strip with one field for each bin. The larger the bin's value, the darker its field;
/// the value `most` has the darkest colour.
pub fn strip(bins: &[u64], most: u64, class: &str, label: &str) -> String {
    let level = |n: u64| match n {
        0 => 0,
        n => 1 + (u128::from(n) * u128::from(LEVELS - 1) / u128::from(most.max(1))) as u64,
    };
    let mut fields = String::new();
    let mut i = 0;
    while i < bins.len() {
        let here = level(bins[i]);
        let end = bins[i..].iter().position(|&n| level(n) != here);
        let end = end.map_or(bins.len(), |n| i + n);
        if here > 0 {
            let opacity = (0.15 + 0.85 * here as f64 / LEVELS as f64).min(1.0);
            let _ = write!(
                fields,
                "<rect x=\"{i}\" width=\"{}\" height=\"1\" opacity=\"{opacity:.2}\"/>",
                end - i
            );
        }
        i = end;
    }
    format!(
        "<svg class=\"strip {class}\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {} 1\" \
            preserveAspectRatio=\"none\">{fields}</svg>",
        bins.len().max(1)
    )
}

/// Returns a bar for a table cell. The cell's text has the same value.
pub fn bar(share: f64, class: &str) -> String {
    let width = (share.clamp(0.0, 1.0) * 1000.0).round() / 10.0;
    format!(
        "<svg class=\"bar\" aria-hidden=\"true\" viewBox=\"0 0 100 1\" \
            preserveAspectRatio=\"none\"><rect class=\"{class}\" width=\"{width}\" \
            height=\"1\"/></svg>"
    )
}

/// Returns a bar of several adjacent shares. `label` describes the content.
pub fn shares(shares: &[(f64, &str)], label: &str) -> String {
    let (mut parts, mut at) = (String::new(), 0.0);
    for (share, class) in shares {
        let width = share.clamp(0.0, 1.0) * 100.0;
        let _ = write!(
            parts,
            "<rect class=\"{class}\" x=\"{at:.1}\" width=\"{width:.1}\" height=\"1\"/>"
        );
        at += width;
    }
    format!(
        "<svg class=\"shares\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 100 1\" \
            preserveAspectRatio=\"none\">{parts}</svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stay_in_their_frames() {
        let a = area(&[0, 5, 10, 10, 0], 10, "read", "x");
        assert!(
            a.contains("d=\"M0 100H0V100H1V50H2V0H4V100H5V100Z\""),
            "{a}"
        );
        let s = strip(&[0, 0, 7, 7, 1], 7, "read", "x");
        assert_eq!(s.matches("<rect").count(), 2);
        assert!(
            s.contains("x=\"2\" width=\"2\"") && s.contains("opacity=\"1.00\""),
            "{s}"
        );
        assert!(bar(7.0, "read").contains("width=\"100\""));
        assert!(!area(&[], 0, "read", "x").contains("NaN"));
        assert!(!area(&[u64::MAX], u64::MAX, "read", "x").contains("NaN"));
    }
}
