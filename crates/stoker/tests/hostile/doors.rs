//! The ports of a node, and how messages get there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use stoker_client::wire::{ClientHello, PROOF_LEN, SERVER_HELLO_LEN, VERDICT_LEN, VERSION, VERSION_MIN};
use stoker_format::ClusterId;

/// How long an answer may take before the next message is sent elsewhere. A message may leave a node waiting for the rest of it.
const ANSWER_MAX: Duration = Duration::from_millis(50);

/// One port.
pub struct Door {
    pub name: &'static str,
    place: Place,
    /// What the node said when it was ready: keys, tokens.
    pub ready: Value,
}

enum Place {
    Tcp(SocketAddr),
    Client(PathBuf),
}

trait Stream: Read + Write {
    fn end(&self);
}

impl Stream for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl Door {
    /// All of a node.
    pub fn all(ready: &Value, dir: &Path) -> Vec<Door> {
        let tcp = |name: &'static str, field: &str| {
            let text = ready[field].as_str().unwrap_or_else(|| panic!("{field} in {ready}"));
            let address = text.trim_start_matches("http://").parse().unwrap();
            Door { name, place: Place::Tcp(address), ready: ready.clone() }
        };
        let client = Place::Client(dir.join("stoker.sock"));
        vec![
            tcp("s3", "s3"),
            tcp("admin", "admin"),
            tcp("nfs", "nfs"),
            tcp("peers", "peers"),
            Door { name: "client", place: client, ready: ready.clone() },
        ]
    }

    /// Sends messages over one connection; how many were sent before the node had enough of it.
    pub fn send(&self, messages: &[Vec<u8>]) -> u64 {
        let Ok(mut stream) = self.connect() else {
            // It is told to wait like everybody who asks too much.
            std::thread::sleep(Duration::from_millis(1));
            return 0;
        };
        let mut sent = 0;
        for message in messages {
            if stream.write_all(message).is_err() {
                break;
            }
            sent += 1;
        }
        stream.end();
        let (mut sink, mut left) = ([0; 16 << 10], 64);
        while left > 0 && matches!(stream.read(&mut sink), Ok(1..)) {
            left -= 1;
        }
        sent
    }

    fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        match &self.place {
            Place::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                Ok(Box::new(stream))
            }
            Place::Client(path) => {
                let mut stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(ANSWER_MAX * 10))?;
                stream.set_write_timeout(Some(ANSWER_MAX * 10))?;
                let hello = ClientHello {
                    version: VERSION,
                    version_min: VERSION_MIN,
                    token: 0,
                    nonce: [1; 32],
                    cluster: ClusterId::ZERO,
                };
                stream.write_all(&hello.encode())?;
                stream.read_exact(&mut [0; SERVER_HELLO_LEN])?;
                stream.write_all(&[0; PROOF_LEN])?;
                stream.read_exact(&mut [0; VERDICT_LEN])?;
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                Ok(Box::new(stream))
            }
        }
    }
}
