// What every page has: the one-time link, and the keyboard.

const root = document.documentElement.dataset.root ?? './';

// The link's secret stands behind '#', so that it reaches no log and no Referer.
const login = /** @type {HTMLFormElement | null} */ (document.getElementById('login'));
if (login && location.hash.startsWith('#t=')) {
  const secret = /** @type {HTMLInputElement} */ (document.getElementById('t'));
  secret.value = location.hash.slice(3);
  history.replaceState(null, '', location.pathname);
  login.submit();
}

let before = '';
document.addEventListener('keydown', (event) => {
  const at = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || at.closest('input, select, textarea')) {
    return;
  }
  const key = event.key;
  if (before === 'g') {
    /** @type {HTMLAnchorElement | null} */ (document.querySelector(`nav a[data-key="${CSS.escape(key)}"]`))?.click();
  } else if (key === '/') {
    event.preventDefault();
    document.getElementById('q')?.focus();
  }
  before = key;
});

export { root };
