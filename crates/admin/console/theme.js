// Before anything is drawn: the theme that was chosen here, else the system's.
const chosen = localStorage.getItem("stoker-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
