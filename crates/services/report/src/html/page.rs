//! An HTML page while it is written: the page's frame, tables and cells.

use crate::text::{self, html};
use std::fmt::Write;

/// The start tag of the element with the run's JSON.
pub(super) const RUN_ELEMENT: &str = "<script type=\"application/json\" id=\"run\">";
/// Maximum number of shown characters of a path. A longer path loses its middle.
const MAX_PATH_CHARS: usize = 56;
const STYLE: &str = include_str!("../page.css");
const SCRIPT: &str = include_str!("../page.js");
/// SHA-256 of [`SCRIPT`], in base64: the page's policy allows this script.
const SCRIPT_HASH: &str = "w3gaSrVBFBrOGJhuYfDRPFNkIhAKY+5qRRhN3UK7N4E=";

/// A cell of a table: a number to sort by, and HTML.
pub(super) struct Cell {
    pub(super) sort: Option<f64>,
    pub(super) html: String,
}

pub(super) fn words(text: &str) -> Cell {
    Cell {
        sort: None,
        html: html(text),
    }
}

pub(super) fn number(n: u64) -> Cell {
    Cell {
        sort: Some(n as f64),
        html: text::count(n),
    }
}

pub(super) fn size(n: u64) -> Cell {
    Cell {
        sort: Some(n as f64),
        html: text::bytes(n as f64),
    }
}

pub(super) fn time(nanoseconds: f64) -> Cell {
    Cell {
        sort: Some(nanoseconds),
        html: html(&text::time(nanoseconds)),
    }
}

pub(super) fn maybe(n: Option<f64>, show: impl Fn(f64) -> String) -> Cell {
    Cell {
        sort: Some(n.unwrap_or(-1.0)),
        html: n.map_or("–".into(), |n| html(&show(n))),
    }
}

/// Returns a path as HTML. Lines may break after directories. A shortened path has the whole path
/// as its `title`.
pub(super) fn path(path: &str) -> String {
    let short = text::shortened(path, MAX_PATH_CHARS);
    let title = if short == path {
        String::new()
    } else {
        format!(" title=\"{}\"", html(path))
    };
    let (first, rest) = short.split_at(usize::from(short.starts_with('/')));
    let rest = html(rest).replace('/', "/<wbr/>");
    format!("<code{title}>{first}{rest}</code>")
}

/// Returns a block of text to copy. The page's script adds a button to it.
pub(super) fn block(text: &str) -> String {
    format!("<pre><code>{}</code></pre>", html(text))
}

/// A page that is being written.
pub(crate) struct Page {
    text: String,
}

impl Page {
    pub(crate) fn new(title: &str) -> Page {
        let title = html(title);
        Page {
            text: format!(
                "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
                 <meta http-equiv=\"Content-Security-Policy\" \
                 content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
                 script-src 'sha256-{SCRIPT_HASH}'\"/>\n\
                 <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
                 <meta name=\"color-scheme\" content=\"light dark\"/>\n\
                 <link rel=\"icon\" href=\"data:,\"/>\n\
                 <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
            ),
        }
    }

    pub(crate) fn add(&mut self, html: &str) {
        self.text.push_str(html);
        self.text.push('\n');
    }

    /// Adds a table. Columns whose names begin with `#` contain numbers.
    pub(super) fn table(
        &mut self,
        caption: &str,
        sorted: bool,
        columns: &[&str],
        rows: Vec<Vec<Cell>>,
    ) {
        let class = if sorted { " class=\"sort\"" } else { "" };
        let label = html(caption);
        let _ = write!(
            self.text,
            "<div class=\"wide\" role=\"region\" tabindex=\"0\" \
                aria-label=\"{label}\"><table{class}><caption><span>{label}</span></caption><thead><tr>"
        );
        for column in columns {
            let (class, name) = match column.strip_prefix('#') {
                Some(name) => (" class=\"n\"", name),
                None => ("", *column),
            };
            let _ = write!(self.text, "<th scope=\"col\"{class}>{}</th>", html(name));
        }
        self.text.push_str("</tr></thead><tbody>\n");
        if rows.is_empty() {
            let all = columns.len();
            let _ = writeln!(
                self.text,
                "<tr><td colspan=\"{all}\" class=\"more\">none</td></tr>"
            );
        }
        for row in rows {
            self.text.push_str("<tr>");
            for (cell, column) in row.iter().zip(columns) {
                let class = if column.starts_with('#') {
                    " class=\"n\""
                } else {
                    ""
                };
                let sort = cell.sort.map(|n| format!(" data-v=\"{n}\""));
                let _ = write!(
                    self.text,
                    "<td{class}{}>{}</td>",
                    sort.unwrap_or_default(),
                    cell.html
                );
            }
            self.text.push_str("</tr>\n");
        }
        self.add("</tbody></table></div>");
    }

    pub(crate) fn finish(mut self, data: Option<&str>) -> String {
        self.add("</main>");
        if let Some(json) = data {
            let json = text::json_in_html(json);
            let _ = writeln!(self.text, "{RUN_ELEMENT}{json}</script>");
        }
        let _ = write!(self.text, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
        self.text
    }
}
