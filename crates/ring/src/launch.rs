//! Starts a driver, as a thread or as a task, over the executor that this machine allows. (D10)

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::buffer::Pool;
use crate::drive::Drive;
use crate::driver::{Call, Driver, DriverParts, Inbox};
use crate::engine::{Damage, Engine};
use crate::error::{ErrorKind, Result, RingError};
use crate::io::{Background, EventWake, Executor, Psync, Uring};
use crate::settings::{IoMode, Settings, SyncMode};
use crate::stats::Stats;
use crate::sys;

/// What a driver needs, before it is known which thread it runs on.
pub(crate) struct StartParts {
    pub engine: Engine<Arc<Call>>,
    pub background: Background,
    pub inbox: Arc<Inbox>,
    pub wake: Arc<EventWake>,
    pub stats: Arc<Stats>,
    pub damages: Arc<Mutex<Vec<Damage>>>,
    pub pool: Arc<Pool>,
    pub now_unix_ms: Box<dyn Fn() -> u64 + Send>,
}

impl StartParts {
    pub fn driver(self, executor: Box<dyn Executor>, settings: &Settings) -> Driver {
        Driver::new(DriverParts {
            engine: self.engine,
            executor,
            background: self.background,
            inbox: self.inbox,
            wake: self.wake,
            stats: self.stats,
            damages: self.damages,
            now_unix_ms: self.now_unix_ms,
            spin: Duration::from_micros(u64::from(settings.spin_us)),
        })
    }
}

/// Starts the driver thread; returns why io_uring is not used, if it is not.
pub(crate) fn start_thread(
    parts: StartParts,
    drive: Arc<Drive>,
    settings: &Settings,
) -> Result<Option<String>> {
    let settings = settings.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let run = move || {
        let pinned = settings.core.map_or(Ok(()), sys::pin_to_core);
        let pinned = pinned.map_err(|e| RingError::io("pinning the driver thread", &e));
        // The ring is set up by the thread that will use it: SINGLE_ISSUER binds it to that thread.
        let made = pinned.and_then(|()| executor(drive, parts.pool.clone(), &parts.wake, &settings));
        let (executor, fallback) = match made {
            Ok(made) => made,
            Err(e) => {
                let _ = tell.send(Err(e));
                return;
            }
        };
        let _ = tell.send(Ok(fallback));
        let driver = parts.driver(executor, &settings);
        // A broken invariant must not leave callers waiting for ever, nor a half-trusted engine running.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| driver.run())).is_err() {
            eprintln!("stoker: the ring's driver found a broken invariant (see above); stopping at once");
            std::process::abort();
        }
    };
    std::thread::Builder::new()
        .name("stoker-ring".into())
        .spawn(run)
        .map_err(|e| RingError::io("starting the driver thread", &e))?;
    told.recv().unwrap_or_else(|_| Err(RingError::new(ErrorKind::Closed, "the driver thread ended at once")))
}

/// An executor, and why it is not io_uring if it is not.
pub(crate) type Made = (Box<dyn Executor>, Option<String>);

/// An executor, on a drive that can lose power if the settings say so.
pub(crate) fn executor(
    drive: Arc<Drive>,
    pool: Arc<Pool>,
    wake: &Arc<EventWake>,
    settings: &Settings,
) -> Result<Made> {
    let made = plain_executor(drive.clone(), pool, wake, settings)?;
    #[cfg(feature = "power")]
    if let Some(power) = &settings.power {
        let powered = crate::io::Powered::new(made.0, drive, power.clone());
        return Ok((Box::new(powered), made.1));
    }
    Ok(made)
}

/// io_uring where it is allowed, its fallback otherwise.
fn plain_executor(
    drive: Arc<Drive>,
    pool: Arc<Pool>,
    wake: &Arc<EventWake>,
    settings: &Settings,
) -> Result<Made> {
    let mut why = None;
    let mut settings = settings.clone();
    if settings.iopoll
        && let Err(e) = Uring::can_poll(&drive)
    {
        settings.iopoll = false;
        why = Some(format!("IOPOLL is off: the drive cannot be polled ({e})"));
    }
    if settings.iopoll && settings.sync == SyncMode::Flush {
        settings.iopoll = false;
        why = Some("IOPOLL is off: a polled ring cannot flush (use RWF_DSYNC)".into());
    }
    if settings.io != IoMode::Psync {
        match Uring::new(drive.clone(), pool, wake.clone(), &settings) {
            Ok(uring) => return Ok((Box::new(uring), why)),
            Err(e) if settings.io == IoMode::Uring => return Err(RingError::io("io_uring", &e)),
            Err(e) => why = Some(format!("io_uring is not allowed here ({e})")),
        }
    }
    let psync = Psync::new(drive, wake.clone(), settings.psync_threads);
    Ok((Box::new(psync.map_err(|e| RingError::io("starting I/O threads", &e))?), why))
}
