//! The screen of a terminal while `top` has it: a second page, given back however the program ends.

use std::fmt::Write;
use std::sync::Once;

use crate::failure::Failure;
use crate::out;
use crate::sys::terminal;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The screen; given back when dropped.
pub struct Screen(());

impl Screen {
    /// Takes it. A panic gives it back before it says anything, so that its words are seen.
    pub fn take() -> Result<Screen, Failure> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                leave();
                before(panic);
            }));
        });
        terminal::take_keys().map_err(|e| Failure::io("the terminal", &e))?;
        let screen = Screen(());
        out::bytes(ENTER.as_bytes())?;
        Ok(screen)
    }

    /// Draws lines over what is there. No line is longer than the screen is wide.
    pub fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        out::bytes(page(lines).as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn leave() {
    let _ = out::bytes(LEAVE.as_bytes());
    terminal::give_keys_back();
}

/// The bytes of a page: each line erases what is left of the one that was there.
fn page(lines: &[String]) -> String {
    let mut page = String::from("\x1b[H");
    for (at, line) in lines.iter().enumerate() {
        let end = if at + 1 < lines.len() { "\r\n" } else { "" };
        let _ = write!(page, "{line}\x1b[K{end}");
    }
    page.push_str("\x1b[J");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_never_scrolls() {
        let lines = ["a".to_owned(), "b".to_owned()];
        assert_eq!(page(&lines), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
        assert_eq!(page(&[]), "\x1b[H\x1b[J");
    }
}
