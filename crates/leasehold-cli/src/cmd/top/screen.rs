//! Takes the terminal for the whole screen, and restores it however `top` ends.

use std::io::{self, BufWriter};
use std::thread;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use tokio::sync::mpsc;

use crate::signals;
use crate::stdout::Stdout;

/// How often the thread that reads keys looks whether they are still read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A terminal that does not know its size has had this one for fifty years.
const SIZE: (u16, u16) = (80, 24);

#[derive(Debug)]
pub(super) struct Screen {
    terminal: Drawn,
    /// In columns and lines.
    size: (u16, u16),
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        let terminal = Drawn::of(SIZE).inspect_err(|_| drop(disable_raw_mode()))?;
        let screen = Self { terminal, size: SIZE };
        // What fails from here on gives the terminal back.
        execute!(Stdout, EnterAlternateScreen, Clear(ClearType::All), Hide)?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let size = size();
        if size != self.size {
            execute!(Stdout, Clear(ClearType::All))?;
            (self.terminal, self.size) = (Drawn::of(size)?, size);
        }
        self.terminal.0.as_mut().map_or(Ok(()), |terminal| terminal.draw(draw).map(drop))
    }

    /// Stops this process, as Ctrl-Z does without a full screen.
    pub(super) fn suspend(self) -> io::Result<Self> {
        drop(self);
        signals::suspend();
        Self::open()
    }
}

/// What is drawn on.
#[derive(Debug)]
struct Drawn(Option<Terminal<CrosstermBackend<BufWriter<Stdout>>>>);

impl Drawn {
    /// Of a fixed size: one that looks after its size asks the terminal where the cursor is, and
    /// waits for the answer, which some never give.
    fn of((columns, rows): (u16, u16)) -> io::Result<Self> {
        let viewport = Viewport::Fixed(Rect::new(0, 0, columns, rows));
        let options = TerminalOptions { viewport };
        let terminal =
            Terminal::with_options(CrosstermBackend::new(BufWriter::new(Stdout)), options)?;
        Ok(Self(Some(terminal)))
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        // Where the cursor can't be shown again, since the terminal is gone, its own end would say
        // so there, and panic over that.
        if let Some(mut terminal) = self.0.take()
            && terminal.show_cursor().is_err()
        {
            std::mem::forget(terminal);
        }
    }
}

fn size() -> (u16, u16) {
    match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => SIZE,
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        drop(execute!(Stdout, Show, LeaveAlternateScreen));
        drop(disable_raw_mode());
    }
}

/// What is typed, and that the terminal changes its size.
pub(super) fn keys() -> mpsc::Receiver<Event> {
    let (typed, keys) = mpsc::channel(64);
    thread::spawn(move || {
        while !typed.is_closed() {
            match event::poll(LOOK_EVERY) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let wanted = |event: &Event| match event {
                Event::Key(key) => key.kind != KeyEventKind::Release,
                event => matches!(event, Event::Resize(..)),
            };
            match event::read() {
                Ok(event) if wanted(&event) => {
                    if typed.blocking_send(event).is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    });
    keys
}
