//! What the service manager is told: one datagram each to the socket that systemd names in `NOTIFY_SOCKET`.
//!
//! `READY=1` is sent once everything serves, so that units which start after this one find it. `WATCHDOG=1` is sent as
//! long as `/healthz` would be 200; a node that only a restart helps falls silent, and the manager starts it again. Whether
//! anybody listens changes nothing else: a message that cannot be sent is dropped, except `READY=1`, which is tried again
//! while the manager's queue is full: without it, a unit counts as starting for ever.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stoker_admin::{Health, HealthSource};

/// Status texts are one line of at most this many bytes.
const STATUS_LEN_MAX: usize = 512;

/// How soon a full queue of the manager is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// The service manager, if one listens.
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The manager wants to hear of us at least this often.
    watchdog: Option<Duration>,
    health: OnceLock<HealthSource>,
}

impl Notify {
    /// The one that the environment names.
    pub fn from_env() -> Notify {
        let text = |name| std::env::var(name).ok();
        let watchdog = watchdog_of(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        let named = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = named.and_then(|name| match open(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!("the service manager is not told anything: NOTIFY_SOCKET: {error}");
                None
            }
        });
        Notify { socket, watchdog, health: OnceLock::new() }
    }

    /// It starts, which may take long: drives are read, or the catalog is waited for.
    pub fn starting(&self) {
        self.send("STATUS=starting");
    }

    /// It serves.
    pub fn ready(self: &Arc<Notify>, status: &str, health: HealthSource) {
        let message = format!("READY=1\nSTATUS={}", one_line(status));
        let notify = Arc::clone(self);
        if self.send(&message) {
            let _ = self.health.set(health);
            return;
        }
        // Ends with the runtime.
        tokio::spawn(async move {
            while !notify.send(&message) {
                tokio::time::sleep(AGAIN).await;
            }
            let _ = notify.health.set(health);
        });
    }

    /// It stops.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping; requests under way are finished");
    }

    /// Tells that it lives, if the manager asks for that; ends with the runtime. The manager starts to count when it
    /// hears `READY=1`, so beats before it only fill the manager's queue; one that starts `again` has said it before.
    pub fn keep_alive(self: &Arc<Notify>, again: bool) {
        let Some(every) = self.watchdog.filter(|_| self.socket.is_some()) else { return };
        let notify = Arc::clone(self);
        tokio::spawn(async move {
            // Twice as often as it is wanted: one that is late does no harm.
            let mut beats = tokio::time::interval(every / 2);
            loop {
                beats.tick().await;
                let lives =
                    notify.health.get().map_or(again, |health| !matches!(health(), Health::Failed(_)));
                if lives {
                    notify.send("WATCHDOG=1");
                }
            }
        });
    }

    /// Whether there is no need to try again: it was sent, or nobody listens.
    fn send(&self, message: &str) -> bool {
        let Some((socket, address)) = &self.socket else { return true };
        let Err(error) = socket.send_to_addr(message.as_bytes(), address) else { return true };
        tracing::debug!("the service manager was not told: {error}");
        error.kind() != io::ErrorKind::WouldBlock
    }
}

/// A socket, and where the manager's is: a path, or an abstract name behind `@`.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold the node up.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// How often the manager wants to hear of the process with this id.
fn watchdog_of(usec: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.trim().parse() != Ok(own)) {
        return None;
    }
    let every = Duration::from_micros(usec?.trim().parse().ok()?);
    // Half of it is the interval, which cannot be nothing.
    (every >= Duration::from_millis(1)).then_some(every)
}

/// Other lines would be read as other messages.
fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while line.len() > STATUS_LEN_MAX {
        line.pop();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_that_of_this_process() {
        let of = |usec: &str, pid: Option<&str>| watchdog_of(Some(usec.into()), pid.map(str::to_owned), 7);
        assert_eq!(of("30000000", None), Some(Duration::from_secs(30)));
        assert_eq!(of("30000000", Some("7")), Some(Duration::from_secs(30)));
        assert_eq!(of("30000000", Some("8")), None);
        for nonsense in ["", "0", "-1", "x", "99999999999999999999999"] {
            assert_eq!(of(nonsense, None), None, "{nonsense}");
        }
        assert_eq!(watchdog_of(None, None, 7), None);
    }

    #[test]
    fn names_that_are_no_socket_are_refused() {
        for name in ["x", "vsock:2:1", "relative/path"] {
            assert!(open(OsStr::new(name)).is_err(), "{name}");
        }
        let long = format!("@{}", "n".repeat(200));
        assert!(open(OsStr::new(&long)).is_err());
    }

    #[tokio::test]
    async fn ready_is_told_to_a_manager_that_was_busy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notify = Arc::new(Notify {
            socket: Some(open(path.as_os_str()).unwrap()),
            watchdog: None,
            health: OnceLock::new(),
        });
        while notify.send("WATCHDOG=1") {}
        notify.ready("s", Box::new(|| Health::Good));
        let mut bytes = [0; 64];
        let all = tokio::task::spawn_blocking(move || {
            // It is behind what filled the queue.
            loop {
                let len = manager.recv(&mut bytes).unwrap();
                if bytes[..len].starts_with(b"READY=1") {
                    return;
                }
            }
        });
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap().unwrap();
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("a\nREADY=1\r"), "a READY=1 ");
        assert!(one_line(&"é".repeat(1000)).len() <= STATUS_LEN_MAX);
    }
}
