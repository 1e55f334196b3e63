//! nginx: the upper bound. It sends files from the page cache with sendfile, checks no signature, and its PUT is in the
//! page cache when it answers, not on the drive.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Server;
use crate::failure::Failure;
use crate::process::{Process, find_program, free_port};
use crate::s3::target::Target;
use crate::{out, sys};

/// A running nginx.
pub struct Nginx {
    /// The server.
    pub server: Server,
    objects: PathBuf,
}

impl Nginx {
    /// Starts it; `None`, with a word about it, if the program is not there.
    pub fn start(dir: &Path) -> Result<Option<Nginx>, Failure> {
        let places = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"].map(PathBuf::from);
        let Some(program) = find_program("STOKER_NGINX", "nginx", &places) else {
            out::say(
                "skipped: nginx is not installed (Debian: apt-get install nginx-light), so there is no ratio",
            );
            return Ok(None);
        };
        let dir = std::path::absolute(dir).map_err(|e| Failure::io(dir.display(), &e))?;
        let (objects, address) = (dir.join("objects"), free_port()?);
        for folder in [&objects, &dir.join("body")] {
            fs::create_dir_all(folder).map_err(|e| Failure::io(folder.display(), &e))?;
        }
        let config = dir.join("nginx.conf");
        fs::write(&config, config_text(&dir, address.port()))
            .map_err(|e| Failure::io(config.display(), &e))?;
        let mut command = Command::new(program);
        command.arg("-p").arg(&dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&config);
        let process = Process::start("nginx", command, dir.join("log"))?;
        process.wait_for(address)?;
        Ok(Some(Nginx {
            server: Server { name: "nginx", process, target: Target::plain(address).into() },
            objects,
        }))
    }

    /// Has the kernel write and then drop what it holds of a group of objects in memory.
    pub fn forget(&self, group: &str) -> Result<(), Failure> {
        self.each_file(group, |path| {
            let file = File::open(path)?;
            file.sync_all()?;
            sys::forget_pages(&file)
        })
    }

    /// Removes a group of objects, so that writing them back takes nothing from whoever is measured next.
    pub fn remove(&self, group: &str) -> Result<(), Failure> {
        self.each_file(group, |path| fs::remove_file(path))
    }

    fn each_file(&self, group: &str, work: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), Failure> {
        let folder = self.objects.join(group);
        let failed = |e| Failure::io(folder.display(), &e);
        if !folder.exists() {
            return Ok(());
        }
        for entry in fs::read_dir(&folder).map_err(failed)? {
            work(&entry.map_err(failed)?.path()).map_err(failed)?;
        }
        Ok(())
    }
}

/// Two workers, as Stoker has two threads; everything that makes it fast; nothing that it does not need.
fn config_text(dir: &Path, port: u16) -> String {
    // Started by root, workers would be somebody who cannot read what we write.
    let user = if fs::metadata(dir).is_ok_and(|meta| meta.uid() == 0) { "user root;" } else { "" };
    let dir = dir.display();
    format!(
        "daemon off;
{user}
worker_processes 2;
pid \"{dir}/pid\";
error_log \"{dir}/error.log\";
events {{ worker_connections 1024; accept_mutex off; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  keepalive_timeout 600;
  client_max_body_size 0;
  client_body_temp_path \"{dir}/body\";
  proxy_temp_path \"{dir}/body\";
  fastcgi_temp_path \"{dir}/body\";
  uwsgi_temp_path \"{dir}/body\";
  scgi_temp_path \"{dir}/body\";
  server {{
    listen 127.0.0.1:{port} reuseport backlog=1024;
    location / {{
      root \"{dir}/objects\";
      dav_methods PUT DELETE;
      create_full_put_path on;
    }}
  }}
}}
"
    )
}
