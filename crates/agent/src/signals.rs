//! Signals that ask a daemon for something.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Stop; the name of the signal.
    Stop(&'static str),
    /// Read certificates again.
    Reload,
}

/// What a hangup means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// The terminal is gone, and we with it.
    Stop,
    /// There is no terminal; an operator wants certificates to be read again.
    Reload,
}

/// The signals, received from the moment that this is made.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    hangup_means: Hangup,
}

impl Signals {
    /// Begins to receive; needs a runtime.
    pub fn listen(hangup_means: Hangup) -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|e| Failure::io("signals", &e));
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            hangup_means,
        })
    }

    /// The next wish.
    pub async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.interrupt.recv() => Wish::Stop("SIGINT"),
            _ = self.terminate.recv() => Wish::Stop("SIGTERM"),
            _ = self.hangup.recv() => match self.hangup_means {
                Hangup::Stop => Wish::Stop("SIGHUP"),
                Hangup::Reload => Wish::Reload,
            },
        }
    }
}
