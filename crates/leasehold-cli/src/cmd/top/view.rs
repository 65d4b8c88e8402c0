//! How it looks: columns that fit the terminal, a bar for what is left of a lease, and no need of colour.

use leasehold::store::{Kind, escape};
use leasehold::{HolderInfo, LockInfo};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, Wrap};
use tokio::time::Instant;

use super::model::{Mode, Model, Seen};
use crate::cmd::show;
use crate::describe::short_mode;
use crate::duration;

/// What a column shows, and from how wide a terminal on. The first two grow.
const COLUMNS: [(&str, u16, Constraint); 8] = [
    ("LOCK", 0, Constraint::Fill(3)),
    ("HOLDER", 48, Constraint::Fill(2)),
    ("MODE", 100, Constraint::Length(9)),
    ("HELD", 66, Constraint::Length(10)),
    ("LEFT", 0, Constraint::Length(8)),
    ("", 60, Constraint::Length(BAR)),
    ("FENCE", 110, Constraint::Length(19)),
    ("LINE", 36, Constraint::Length(5)),
];
const BAR: u16 = 10;

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, place: &str, now: Instant) {
    let [title, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Line::from(headline(model, place, now)), title);
    match model.mode {
        Mode::List | Mode::Filter => list(frame, body, model, now),
        Mode::Details(_) | Mode::Release(_) => details(frame, body, model),
    }
    frame.render_widget(Line::from(footline(model)).style(Modifier::REVERSED), foot);
}

fn headline(model: &Model, place: &str, now: Instant) -> String {
    let (shown, all) = model.counts();
    let count = if shown == all { format!("{all}") } else { format!("{shown} of {all}") };
    let unreadable = match model.unreadable {
        0 => String::new(),
        n => format!(", {n} unreadable"),
    };
    let age = match model.listed_at {
        None => "asking".to_owned(),
        Some(_) => format!("listed {} ago", duration::show(model.age(now))),
    };
    let order = if model.reversed { ", reversed" } else { "" };
    format!(
        "leasehold {}: {count} in use{unreadable}, by {}{order}, {age}",
        escape::terminal(place),
        model.sort.name()
    )
}

fn footline(model: &Model) -> String {
    if let Mode::Release(digits) = &model.mode {
        return format!(
            "take it away from the holder whose fence ends in (4 digits or more): {digits}_"
        );
    }
    if let Mode::Filter = model.mode {
        return format!("filter: {}_", escape::terminal(&model.filter));
    }
    match (&model.message, &model.mode) {
        (Some(message), _) => escape::terminal(message).to_string(),
        (None, Mode::Details(_)) => "esc back  x release  q quit".to_owned(),
        (None, _) if model.filter.is_empty() => {
            "q quit  enter details  / filter  s sort  r reverse  x release".to_owned()
        }
        (None, _) => format!("filter: {}  esc all", escape::terminal(&model.filter)),
    }
}

fn list(frame: &mut Frame<'_>, area: Rect, model: &mut Model, now: Instant) {
    model.show(usize::from(area.height.saturating_sub(1)));
    let columns: Vec<usize> =
        (0..COLUMNS.len()).filter(|column| COLUMNS[*column].1 <= area.width).collect();
    let rows = model.rows().map(|(place, seen)| {
        let mut cells = cells(model, seen, now);
        // Seen also where the terminal shows nothing in reverse.
        let chosen = place == model.selected;
        cells[0].insert_str(0, if chosen { "> " } else { "  " });
        let style =
            if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let cells = columns.iter().map(|column| std::mem::take(&mut cells[*column]));
        Row::new(cells.collect::<Vec<_>>()).style(style)
    });
    let heading = columns.iter().map(|column| match column {
        0 => "  LOCK",
        column => COLUMNS[*column].0,
    });
    let heading = Row::new(heading.collect::<Vec<_>>()).style(Modifier::BOLD);
    let widths = columns.iter().map(|column| COLUMNS[*column].2);
    frame.render_widget(Table::new(rows.collect::<Vec<_>>(), widths).header(heading), area);
}

fn details(frame: &mut Frame<'_>, area: Rect, model: &mut Model) {
    let Some(seen) = model.selected() else { return };
    let text = show::description(&seen.info);
    let lines: Vec<Line<'_>> = text.lines().map(Line::from).collect();
    let last = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(area.height);
    let scrolled = match model.mode {
        Mode::Details(scrolled) => scrolled.min(last),
        _ => 0,
    };
    frame.render_widget(
        Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((scrolled, 0)),
        area,
    );
    if let Mode::Details(at) = &mut model.mode {
        *at = scrolled;
    }
}

/// What all columns say of a lock.
fn cells(model: &Model, seen: &Seen, now: Instant) -> [String; COLUMNS.len()] {
    let info = &seen.info;
    let none = String::new;
    let line = match info.waiting() {
        0 => none(),
        n => n.to_string(),
    };
    let key = info.key.to_string();
    let Some(holder) = longest(info) else {
        let (state, left) = match info.closed_for {
            Some(left) => ("(closed)", duration::show(left)),
            None => ("(free)", none()),
        };
        return [key, state.to_owned(), none(), none(), left, none(), none(), line];
    };
    let (held, left) = seen.times(holder, now);
    let others = match info.holders.len() {
        1 => none(),
        n => format!(" +{}", n.saturating_sub(1)),
    };
    [
        key,
        format!("{}{others}", holder.owner),
        mode(info, holder),
        duration::show(held),
        duration::show(left),
        bar(model.part_left(holder, left)),
        holder.fence.to_string(),
        line,
    ]
}

/// Of several holders the one that has it for longest stands for all.
fn longest(info: &LockInfo) -> Option<&HolderInfo> {
    info.holders.iter().max_by_key(|holder| holder.held_for)
}

fn mode(info: &LockInfo, holder: &HolderInfo) -> String {
    match info.kind {
        Kind::Semaphore { limit } => format!("{}/{limit}", info.permits_held()),
        _ => short_mode(holder),
    }
}

/// `#####.....`, as much of it full as is left.
fn bar(part: f64) -> String {
    let mut bar = String::new();
    for tenth in 0..BAR {
        bar.push(if f64::from(tenth) < part * f64::from(BAR) { '#' } else { '.' });
    }
    bar
}

/// All locks as a table for paper.
pub(super) fn table(model: &Model, now: Instant) -> Vec<Vec<String>> {
    let mut rows = vec![COLUMNS.map(|(name, ..)| name.to_owned()).into()];
    rows.extend(model.all().map(|seen| {
        cells(model, seen, now)
            .map(|cell| if cell.is_empty() { "-".to_owned() } else { cell })
            .into()
    }));
    for row in &mut rows {
        let row: &mut Vec<String> = row;
        // The bar: what is the whole length is not known from one look.
        row.remove(5);
    }
    rows
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::model::tests::{lock, model};
    use super::*;
    use crate::describe::tests::{hostile, steers};

    fn drawn(model: &mut Model, width: u16, height: u16) -> String {
        let now = model.listed_at.unwrap();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model, "redis://h", now)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content().chunks(usize::from(width));
        let lines = lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect());
        lines.collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn columns_go_as_the_terminal_gets_narrow_and_the_name_stays() {
        let mut model = model(vec![lock("reports/daily", 77, 65, 3)], 9);
        for (width, there, gone) in [
            (
                120,
                &["reports/daily", "1m 5s", "##########", "exclusive", "77", "LINE"][..],
                &[][..],
            ),
            (80, &["reports/daily", "1m 5s", "##########", "LINE"], &["exclusive", "77"]),
            (40, &["reports/daily", "20s", "LINE"], &["##", "1m 5s"]),
            (24, &["reports/daily", "20s"], &["LINE", "HOLDER"]),
        ] {
            let text = drawn(&mut model, width, 6);
            for part in there {
                assert!(text.contains(part), "{part:?} is not in\n{text}");
            }
            for part in gone {
                assert!(!text.contains(part), "{part:?} is in\n{text}");
            }
            assert!(text.contains("> "), "{text}");
        }
    }

    #[test]
    fn no_size_of_a_terminal_is_too_small() {
        let mut model = model((1..50).map(|n| lock(&format!("k{n}"), n, n, 0)).collect(), 9);
        for key in [None, Some(KeyCode::End), Some(KeyCode::Enter), Some(KeyCode::Char('x'))] {
            if let Some(code) = key {
                model.key(KeyEvent::new(code, KeyModifiers::NONE));
            }
            for (width, height) in [(1, 1), (3, 2), (10, 3), (500, 1), (2, 100)] {
                drawn(&mut model, width, height);
            }
        }
    }

    #[test]
    fn what_strangers_wrote_can_not_steer_the_terminal_of_who_watches() {
        let mut model = model(vec![hostile()], 9);
        let list = drawn(&mut model, 150, 20);
        model.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
        for text in [list, drawn(&mut model, 150, 20)] {
            assert!(!steers(&text), "{text:?}");
            assert!(text.contains("web\\u{1b}[2J"), "{text}");
        }
    }

    #[test]
    fn a_bar_is_as_full_as_the_lease() {
        assert_eq!(bar(1.0), "##########");
        assert_eq!(bar(0.31), "####......");
        assert_eq!(bar(0.0), "..........");
    }
}
