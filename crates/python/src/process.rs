//! Connections of this process.
//!
//! A process that forks has no threads of its parent in the child, and must not use its sockets. Each process therefore has
//! a runtime and connections of its own, made when they are first needed; those of the parent are left alone, for dropping them
//! would wait for threads that are not there.

use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use stoker_client::{Client, ClientOptions, Endpoint};
use stoker_store::{ErrorKind, StoreError};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{oneshot, watch};

use crate::error;

/// How often a call that waits looks for signals, so that Ctrl-C ends it.
pub const SIGNALS: Duration = Duration::from_millis(50);

/// Which node is meant.
#[derive(Clone)]
pub struct Node {
    pub endpoint: Endpoint,
    pub token: Option<String>,
    pub options: ClientOptions,
}

/// Something that each process has of its own: the one that it was made in, and those that were forked from it.
pub struct Own<T> {
    pid: u32,
    value: ManuallyDrop<T>,
    next: OnceLock<Box<Own<T>>>,
}

impl<T> Own<T> {
    /// That of this process.
    pub fn new(value: T) -> Own<T> {
        Own { pid: std::process::id(), value: ManuallyDrop::new(value), next: OnceLock::new() }
    }

    /// That of this process, made if it has none. No lock is held that another thread could have had when the process was forked.
    pub fn here(&self, make: impl FnOnce() -> PyResult<T>) -> PyResult<&T> {
        let pid = std::process::id();
        let mut own = self;
        while own.pid != pid {
            own = match own.next.get() {
                Some(next) => next,
                None => {
                    let made = Box::new(Own::new(make()?));
                    return Ok(&own.next.get_or_init(|| made).value);
                }
            };
        }
        Ok(&own.value)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: dropped here, once, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A connection in one process.
pub struct Line {
    runtime: Option<Runtime>,
    client: Option<Client>,
}

impl Line {
    async fn connect(node: &Node) -> Result<Client, StoreError> {
        Client::connect_with(&node.endpoint, node.token.as_deref(), node.options.clone()).await
    }

    fn new(py: Python<'_>, node: &Node) -> PyResult<Line> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("stoker")
            .enable_all()
            .build()?;
        let client = wait(py, &runtime, Line::connect(node), |_| Ok(()))?;
        let client = client.map_err(|fault| error::of(fault, &node.endpoint.to_string()))?;
        Ok(Line { runtime: Some(runtime), client: Some(client) })
    }

    /// The connection.
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("there until it is dropped")
    }

    /// Where its calls run.
    pub fn runtime(&self) -> Handle {
        self.runtime.as_ref().expect("there until it is dropped").handle().clone()
    }

    /// Waits for a call, with the interpreter's lock released. Ctrl-C drops the call.
    pub fn wait<T: Send>(&self, py: Python<'_>, call: impl Future<Output = T> + Send) -> PyResult<T> {
        self.wait_telling(py, call, |_| Ok(()))
    }

    /// Waits for work that blocks threads, with the interpreter's lock released. Ctrl-C has it give up.
    pub fn wait_blocking<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Blocked) -> T + Send,
    ) -> PyResult<T> {
        let (give_up, given_up) = watch::channel(false);
        let blocked = Blocked { runtime: self.runtime(), given_up };
        let (tell, told) = oneshot::channel();
        let done = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("stoker-alone".to_owned());
            // Whoever waited may have given up.
            thread.spawn_scoped(scope, || drop(tell.send(work(&blocked))))?;
            let done = self.wait(py, told);
            give_up.send_replace(true);
            done
        })?;
        done.map_err(|_| PyRuntimeError::new_err("a thread ended without a result"))
    }

    /// The same for a call that takes long: `tell` is called now and then, with the interpreter's lock held, and at the end. Its
    /// error drops the call.
    pub fn wait_telling<T: Send>(
        &self,
        py: Python<'_>,
        call: impl Future<Output = T> + Send,
        tell: impl FnMut(Python<'_>) -> PyResult<()>,
    ) -> PyResult<T> {
        wait(py, self.runtime.as_ref().expect("there until it is dropped"), call, tell)
    }
}

/// What threads that may be blocked wait with.
pub struct Blocked {
    runtime: Handle,
    given_up: watch::Receiver<bool>,
}

impl Blocked {
    /// Whether somebody pressed Ctrl-C.
    pub fn is_given_up(&self) -> bool {
        *self.given_up.borrow()
    }

    /// Waits for a call, or until somebody presses Ctrl-C.
    pub fn run<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut given_up = self.given_up.clone();
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _ = given_up.wait_for(|is_given_up| *is_given_up) => Err(StoreError::new(ErrorKind::Closed, "given up")),
                done = call => done,
            }
        })
    }
}

fn wait<T: Send>(
    py: Python<'_>,
    runtime: &Runtime,
    call: impl Future<Output = T> + Send,
    mut tell: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let mut call = Box::pin(call);
    loop {
        let done = py.detach(|| runtime.block_on(async { tokio::time::timeout(SIGNALS, &mut call).await }));
        let told = match done {
            Ok(done) => return tell(py).map(|()| done),
            Err(_) => py.check_signals().and_then(|()| tell(py)),
        };
        if let Err(error) = told {
            // What is given up may want to tell the node so.
            let _inside = runtime.enter();
            drop(call);
            return Err(error);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        {
            let _inside = runtime.enter();
            self.client = None;
        }
        runtime.shutdown_background();
    }
}

/// The connections of a process and of those that were forked from it.
#[derive(Clone)]
pub struct Lines(Arc<(Node, Own<Line>)>);

impl Lines {
    /// Connects.
    pub fn new(py: Python<'_>, node: Node) -> PyResult<Lines> {
        let first = Line::new(py, &node)?;
        Ok(Lines(Arc::new((node, Own::new(first)))))
    }

    /// The connection of this process.
    pub fn here(&self, py: Python<'_>) -> PyResult<&Line> {
        self.0.1.here(|| Line::new(py, &self.0.0))
    }

    /// Where the node is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.0.endpoint
    }
}
