//! The terminal: its size, and a mode in which keys come one by one.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsRawFd;
use std::sync::Mutex;

/// How the terminal was, while it is otherwise. Here and not with whoever changed it, so that a panic can put it back first.
static SAVED: Mutex<Option<libc::termios>> = Mutex::new(None);

/// Columns and rows of the terminal that stdout is, if it is one.
pub fn size() -> Option<(usize, usize)> {
    // SAFETY: a zeroed winsize is valid for the call to fill, and stdout stays open.
    let (result, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(io::stdout().as_raw_fd(), libc::TIOCGWINSZ, &mut size), size)
    };
    (result == 0 && size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// Has keys come one by one and unseen; signals by keys stay, but for the one that suspends. Nothing if stdin is no terminal.
pub fn take_keys() -> io::Result<()> {
    let mut saved = SAVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if saved.is_some() || !io::stdin().is_terminal() {
        return Ok(());
    }
    let input = io::stdin().as_raw_fd();
    // SAFETY: a zeroed termios is valid for the call to fill, and stdin stays open.
    let (result, before) = unsafe {
        let mut before: libc::termios = std::mem::zeroed();
        (libc::tcgetattr(input, &mut before), before)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut raw = before;
    raw.c_lflag &= !(libc::ICANON | libc::ECHO);
    // A read gives what is there, and nothing if nothing is.
    raw.c_cc[libc::VMIN] = 0;
    raw.c_cc[libc::VTIME] = 0;
    raw.c_cc[libc::VSUSP] = libc::_POSIX_VDISABLE;
    // SAFETY: the call reads a termios that was filled above.
    if unsafe { libc::tcsetattr(input, libc::TCSANOW, &raw) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *saved = Some(before);
    Ok(())
}

/// Puts the terminal back as it was; nothing if it is.
pub fn give_keys_back() {
    let saved = SAVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    if let Some(before) = saved {
        // SAFETY: the call reads a termios that the system filled once.
        unsafe { libc::tcsetattr(io::stdin().as_raw_fd(), libc::TCSANOW, &before) };
    }
}

/// Waits a while for keys; empty if none was pressed. None if there will be no more: the terminal is gone.
pub fn wait_for_keys(patience_ms: i32) -> Option<Vec<u8>> {
    let mut wanted = libc::pollfd { fd: io::stdin().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the call fills one pollfd, which is ours.
    let ready = unsafe { libc::poll(&mut wanted, 1, patience_ms) };
    if ready < 0 || wanted.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
        return None;
    }
    let mut keys = [0; 64];
    let len = if ready > 0 { io::stdin().lock().read(&mut keys).unwrap_or(0) } else { 0 };
    Some(keys[..len].to_vec())
}
