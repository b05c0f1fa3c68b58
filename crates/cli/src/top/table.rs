//! Tables that fit the width: columns are left out, least important first, so that no number is
//! truncated.
//!
//! One column of a table may be elastic. This column holds a path and gets the remaining width; a
//! longer path loses its beginning.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

/// Gap between two cells. Columns of the terminal.
const GAP: u16 = 2;
/// Minimum width of an elastic column.
const LEAST_ELASTIC: u16 = 12;

/// A column of a table.
#[derive(Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    pub align: Align,
    /// The columns with the highest rank are left out first; those with rank 0 never.
    pub rank: u8,
    /// Minimum width, so that columns don't move when numbers grow.
    pub least: u16,
}

/// Alignment and width of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
    /// Left-aligned; takes the width that the other columns leave.
    Elastic,
}

impl Column {
    pub const fn number(title: &'static str, least: u16, rank: u8) -> Column {
        Column {
            title,
            align: Align::Right,
            rank,
            least,
        }
    }

    pub const fn word(title: &'static str, least: u16, rank: u8) -> Column {
        Column {
            title,
            align: Align::Left,
            rank,
            least,
        }
    }

    pub const fn path(title: &'static str) -> Column {
        Column {
            title,
            align: Align::Elastic,
            rank: 0,
            least: LEAST_ELASTIC,
        }
    }
}

/// A row of a table.
pub struct Row {
    pub cells: Vec<String>,
    pub style: Style,
}

impl From<Vec<String>> for Row {
    fn from(cells: Vec<String>) -> Row {
        Row {
            cells,
            style: Style::new(),
        }
    }
}

/// A table, with or without a line above it.
#[derive(Default)]
pub struct Table {
    /// A sentence above the table.
    pub above: Option<String>,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// Number of further rows, which `rows` doesn't have.
    pub more: usize,
    /// Whether `rows` is the beginning of a long list: then the number of further rows isn't shown.
    pub is_open: bool,
}

/// Returns the width of a text on a terminal. Columns.
pub fn width(text: &str) -> u16 {
    Span::raw(text).width().min(usize::from(u16::MAX)) as u16
}

/// Returns the end of a text, at most `most` columns wide, with control characters replaced.
pub fn ending(text: &str, most: u16) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let text: String = text.chars().map(shown).collect();
    if width(&text) <= most {
        return text;
    }
    let mut from = text.len();
    for (at, _) in text.char_indices().rev() {
        if width(&text[at..]) + 1 > most {
            break;
        }
        from = at;
    }
    format!("…{}", &text[from..])
}

/// Joins those of `parts` that fit into `most` columns, two columns apart. None is truncated,
/// except a first one that is wider than `most`.
pub fn fitting(parts: &[String], most: u16) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|p| !p.is_empty()) {
        let gap = if line.is_empty() { "" } else { "  " };
        if width(&line) + width(gap) + width(part) <= most {
            line = format!("{line}{gap}{part}");
        } else if line.is_empty() {
            line = ending(part, most);
        }
    }
    line
}

impl Table {
    /// Returns the number of lines of the whole table.
    pub fn height(&self) -> u16 {
        let above = u16::from(self.above.is_some());
        let rows = self.rows.len().min(1000) as u16;
        above + 1 + rows + u16::from(self.more > 0 && !self.is_open)
    }

    /// Returns the columns that fit into `available`, by index, with their widths.
    fn fit(&self, shown: &[Row], available: u16) -> Vec<(usize, u16)> {
        let of = |i: usize| {
            let c = &self.columns[i];
            let cells = shown.iter().filter_map(|r| r.cells.get(i));
            let cells = cells.map(|cell| width(cell)).max().unwrap_or(0);
            match c.align {
                Align::Elastic => c.least,
                _ => c.least.max(width(c.title)).max(cells),
            }
        };
        let mut columns: Vec<(usize, u16)> = (0..self.columns.len()).map(|i| (i, of(i))).collect();
        let all = |columns: &[(usize, u16)]| {
            let cells: u16 = columns.iter().map(|c| c.1).sum();
            cells + GAP * (columns.len() as u16).saturating_sub(1)
        };
        while all(&columns) > available {
            let rank = |&(i, _): &(usize, u16)| self.columns[i].rank;
            let Some(least) = columns.iter().map(rank).max().filter(|&r| r > 0) else {
                break;
            };
            // Removes the last of the equally unimportant columns.
            let last = columns.iter().rposition(|c| rank(c) == least);
            columns.remove(last.unwrap_or(0));
        }
        let left = available.saturating_sub(all(&columns));
        if let Some(elastic) = columns
            .iter_mut()
            .find(|(i, _)| self.columns[*i].align == Align::Elastic)
        {
            elastic.1 += left;
        }
        columns
    }

    /// Draws the table into `area`. The last line gives the number of rows that don't fit.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let mut y = area.y;
        if let Some(above) = &self.above
            && area.height > 1
        {
            let text = beginning(above, area.width);
            buffer.set_stringn(area.x, y, text, area.width.into(), Style::new().bold());
            y += 1;
        }
        let room = usize::from(area.bottom().saturating_sub(y + 1));
        let (shown, hidden) = if self.is_open || self.rows.len() <= room && self.more == 0 {
            (self.rows.len().min(room), 0)
        } else {
            let shown = self.rows.len().min(room.saturating_sub(1));
            (shown, self.rows.len() - shown + self.more)
        };
        let shown = &self.rows[..shown];
        let columns = self.fit(shown, area.width);
        if y >= area.bottom() {
            return;
        }
        let titles: Vec<String> = self.columns.iter().map(|c| c.title.to_owned()).collect();
        let title = Style::new().add_modifier(Modifier::REVERSED);
        let head = Rect::new(area.x, y, area.width, 1);
        buffer.set_style(head, title);
        self.draw_row(&columns, &titles, title, head, buffer);
        for row in shown {
            y += 1;
            let line = Rect::new(area.x, y, area.width, 1);
            self.draw_row(&columns, &row.cells, row.style, line, buffer);
        }
        if hidden > 0 && y + 1 < area.bottom() {
            let text = format!("… {hidden} more");
            let dim = Style::new().add_modifier(Modifier::DIM);
            buffer.set_stringn(area.x, y + 1, text, area.width.into(), dim);
        }
    }

    fn draw_row(
        &self,
        columns: &[(usize, u16)],
        cells: &[String],
        style: Style,
        line: Rect,
        buffer: &mut Buffer,
    ) {
        let mut x = line.x;
        for &(i, wide) in columns {
            let cell = cells.get(i).map_or("", String::as_str);
            let cell = ending(cell, wide);
            let skip = match self.columns[i].align {
                Align::Right => wide.saturating_sub(width(&cell)),
                Align::Left | Align::Elastic => 0,
            };
            if x + skip < line.right() {
                let room = line.right() - x - skip;
                buffer.set_stringn(x + skip, line.y, &cell, room.into(), style);
            }
            x += wide + GAP;
        }
    }
}

/// Returns the beginning of a text, at most `most` columns wide.
fn beginning(text: &str, most: u16) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let mut line = String::new();
    for c in text.chars() {
        if width(&line) + width(&c.to_string()) + 1 > most {
            break;
        }
        line.push(c);
    }
    line + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(table: &Table, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        table.draw(area, &mut buffer);
        super::super::draw::lines(&buffer)
    }

    #[test]
    fn columns_are_left_out_by_their_rank_and_paths_lose_their_beginning() {
        let table = Table {
            above: None,
            columns: vec![
                Column::word("NAME", 0, 0),
                Column::number("LEAST", 0, 9),
                Column::number("MOST", 0, 1),
                Column::path("PATH"),
            ],
            rows: (0..3)
                .map(|i| {
                    Row::from(vec![
                        format!("r{i}"),
                        "12345".into(),
                        "9".into(),
                        "/a/long/path".into(),
                    ])
                })
                .collect(),
            more: 0,
            is_open: false,
        };
        let all = lines(&table, 40, 4);
        assert_eq!(all[0], "NAME  LEAST  MOST  PATH");
        assert_eq!(all[3], "r2    12345     9  /a/long/path");
        let few = lines(&table, 24, 3);
        assert_eq!(
            few,
            ["NAME  MOST  PATH", "r0       9  /a/long/path", "… 2 more"]
        );
        assert_eq!(ending("/a/long/path", 6), "…/path");
        assert_eq!(ending("a\nb", 6), "a\u{fffd}b");
    }

    #[test]
    fn parts_of_a_line_are_whole_or_absent() {
        let parts = ["one".to_owned(), String::new(), "longer".into(), "x".into()];
        assert_eq!(fitting(&parts, 40), "one  longer  x");
        assert_eq!(fitting(&parts, 8), "one  x");
        assert_eq!(
            fitting(&parts, 2),
            "…e  x".get(..4).map_or(String::new(), str::to_owned)
        );
    }
}
