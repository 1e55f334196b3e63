//! The picture of the demo on a terminal: a box for each node that changes while nodes die, below what was told so far. It is drawn
//! where it is again and again, and stays on the screen at the end.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stoker_client::{Client, Endpoint};
use stoker_store::Store;
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::paint::{self, Tone};
use crate::sys::terminal;
use crate::{clock, out};

/// How often it is drawn, and how often a node is asked what it does.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// Longest wait for a node that may have been killed.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Characters between the sides of a box.
const INSIDE: usize = 22;
/// A terminal that is narrower has no room for three boxes.
const COLUMNS_MIN: usize = 3 * (INSIDE + 4) + 2;
/// Rates that are remembered: as many as fit into a box.
const RATES_MAX: usize = INSIDE - 2;

/// How a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    Starting,
    Up,
    Killed,
}

/// A box.
#[derive(Default)]
struct Tile {
    state: Option<NodeState>,
    role: String,
    /// Bytes per second that its drive takes and that are read through it, the newest last; none while it does not answer.
    rates: VecDeque<Option<f64>>,
}

/// What is drawn.
#[derive(Default)]
struct Board {
    tiles: [Tile; 3],
    link: String,
    /// Lines of it that are on the screen now.
    drawn: usize,
    is_over: bool,
}

/// The picture; without a terminal that has room for it, nothing.
#[derive(Clone, Default)]
pub struct Picture(Option<Arc<Mutex<Board>>>);

impl Picture {
    /// The picture, if stdout is a terminal with room for it.
    pub fn new(is_wanted: bool) -> Picture {
        let has_room = terminal::size().is_some_and(|(columns, rows)| columns >= COLUMNS_MIN && rows >= 16);
        Picture((is_wanted && has_room).then(Default::default))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A node is this from now on.
    pub fn node(&self, number: usize, state: NodeState, role: &str) {
        self.change(|board| {
            if let Some(tile) = board.tiles.get_mut(number.wrapping_sub(1)) {
                (tile.state, tile.role) = (Some(state), role.to_owned());
            }
        });
    }

    /// Where to look further.
    pub fn link(&self, link: &str) {
        self.change(|board| board.link = link.to_owned());
    }

    fn change(&self, change: impl FnOnce(&mut Board)) {
        if let Some(board) = &self.0 {
            change(&mut board.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Tells something above the picture.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        let Some(board) = &self.0 else { return out::line(text) };
        let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
        let up = std::mem::take(&mut board.drawn);
        let erased = if up > 0 { format!("\x1b[{up}A\r\x1b[J") } else { String::new() };
        out::bytes(format!("{erased}{text}\n").as_bytes())?;
        draw(&mut board)
    }

    /// Draws from now on, with what the nodes below this folder do.
    pub fn start(&self, dir: &Path) -> Vec<JoinHandle<()>> {
        let Some(board) = &self.0 else { return Vec::new() };
        let watch = |number: usize| {
            let endpoint = Endpoint::Unix(dir.join(format!("node-{number}")).join(crate::daemon::SOCKET));
            tokio::spawn(watch(board.clone(), number - 1, endpoint))
        };
        let mut tasks: Vec<JoinHandle<()>> = (1..=3).map(watch).collect();
        let board = board.clone();
        tasks.push(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(DRAW_EVERY);
            loop {
                ticks.tick().await;
                let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
                // Nobody may be there to see it.
                if board.is_over || draw(&mut board).is_err() {
                    return;
                }
            }
        }));
        tasks
    }

    /// Draws it for the last time.
    pub fn end(&self) {
        self.change(|board| {
            let _ = draw(board);
            (board.is_over, board.drawn) = (true, 0);
        });
    }
}

fn draw(board: &mut Board) -> Result<(), Failure> {
    let lines = frame(board);
    let up = if board.drawn > 0 { format!("\x1b[{}A\r", board.drawn) } else { String::new() };
    let text: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
    board.drawn = lines.len();
    out::bytes(format!("{up}{text}").as_bytes())
}

/// Asks a node again and again what it does. One that does not answer leaves a gap.
async fn watch(board: Arc<Mutex<Board>>, at: usize, endpoint: Endpoint) {
    let mut client: Option<Client> = None;
    let mut before: Option<(Instant, f64)> = None;
    loop {
        tokio::time::sleep(DRAW_EVERY).await;
        let ask = async {
            if client.is_none() {
                client = Client::connect(&endpoint, None).await.ok();
            }
            let counters = client.as_ref()?.counters().await.ok()?;
            let moved = |name: &str| matches!(name, "ring_user_bytes_total" | "read_bytes_total");
            Some(counters.iter().filter(|one| moved(&one.name)).map(|one| one.value).sum::<f64>())
        };
        let total = tokio::time::timeout(ANSWER_MAX, ask).await.ok().flatten();
        let now = clock::now();
        let rate = match (total, before) {
            (Some(total), Some((then, known))) => {
                Some((total - known).max(0.0) / now.duration_since(then).as_secs_f64().max(1e-3))
            }
            _ => None,
        };
        before = total.map(|total| (now, total));
        if total.is_none() {
            client = None;
        }
        let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
        if board.is_over {
            return;
        }
        let Some(tile) = board.tiles.get_mut(at) else { return };
        if tile.rates.len() == RATES_MAX {
            tile.rates.pop_front();
        }
        tile.rates.push_back(rate);
    }
}

/// A text that fills its place.
fn filled(text: &str, width: usize) -> String {
    let cut: String = text.chars().take(width).collect();
    format!("{cut:width$}")
}

/// The lines of a box, all as wide.
fn tile(number: usize, tile: &Tile) -> Vec<String> {
    let (words, tone) = match tile.state {
        None => ("not there yet", Tone::Faint),
        Some(NodeState::Starting) => ("o starts", Tone::Careful),
        Some(NodeState::Up) => ("● up", Tone::Good),
        Some(NodeState::Killed) => ("✗ killed (kill -9)", Tone::Bad),
    };
    let title = format!("─ node-{number} ");
    let rates: Vec<Option<f64>> = tile.rates.iter().copied().collect();
    let now = match rates.last().copied().flatten() {
        Some(rate) => format!("{:>8.1} MB/s", rate / 1e6),
        None => format!("{:>13}", "-"),
    };
    let inside = [
        paint::text(&filled(words, INSIDE), tone),
        filled(&tile.role, INSIDE),
        filled(&format!("moves {now}"), INSIDE),
        filled(&paint::sparkline(&rates, RATES_MAX), INSIDE),
    ];
    let mut lines = vec![format!("┌{title}{}┐", "─".repeat(INSIDE + 2 - title.chars().count()))];
    lines.extend(inside.into_iter().map(|text| format!("│ {text} │")));
    lines.push(format!("└{}┘", "─".repeat(INSIDE + 2)));
    lines
}

/// The whole picture.
fn frame(board: &Board) -> Vec<String> {
    let tiles: Vec<Vec<String>> = board.tiles.iter().enumerate().map(|(at, one)| tile(at + 1, one)).collect();
    let rows = tiles.first().map_or(0, Vec::len);
    let row = |at: usize| tiles.iter().map(|tile| tile[at].as_str()).collect::<Vec<_>>().join(" ");
    let mut lines = vec![String::new()];
    lines.extend((0..rows).map(row));
    if !board.link.is_empty() {
        lines.push(board.link.clone());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_change_and_keep_their_size() {
        let mut board = Board::default();
        let widths = |board: &Board| -> Vec<usize> {
            frame(board).iter().skip(1).map(|line| line.chars().count()).collect()
        };
        let empty = widths(&board);
        assert!(empty.iter().all(|width| *width == COLUMNS_MIN), "{empty:?}");
        board.tiles[0] = Tile {
            state: Some(NodeState::Up),
            role: "a role that is much too long for the box that it is in".into(),
            rates: [None, Some(1e6), Some(2.5e9)].into(),
        };
        board.tiles[1].state = Some(NodeState::Killed);
        let text = frame(&board).join("\n");
        for words in ["node-1", "● up", "2500.0 MB/s", "✗ killed", "not there yet"] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert_eq!(widths(&board), empty);
    }

    #[test]
    fn without_a_terminal_there_is_no_picture() {
        // Tests have none.
        let picture = Picture::new(true);
        picture.node(1, NodeState::Up, "");
        picture.node(0, NodeState::Up, "");
        assert!(!picture.is_on());
    }
}
