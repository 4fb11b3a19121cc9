// Looks at the console in Chromium: node look.mjs SCENARIO, with LINK (for one login) and what the scenario needs in the
// environment. It prints one line of JSON: what it saw.
import { readFile, mkdir } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const require = createRequire(import.meta.url);
const link = new URL(process.env.LINK);
const shots = process.env.SCREENSHOTS;

const executablePath = process.env.CHROMIUM ??
  ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find((path) => existsSync(path));

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });

/** @type {string[]} What must not be there: errors of scripts, dialogs, violations of the policy. */
const faults = [];

/** open returns a page that is watched. */
async function open(context) {
  const page = await context.newPage();
  page.on('console', (message) => {
    if (message.type() === 'error') {
      faults.push(`${page.url()}: ${message.text()}`);
    }
  });
  page.on('pageerror', (error) => faults.push(`${page.url()}: ${error.message}`));
  page.on('dialog', (dialog) => {
    faults.push(`${page.url()}: a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => {
      console.error(`violates ${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
    });
  });
  return page;
}

/** login opens the link and returns a context that is logged in. */
async function login(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await open(context);
  await page.goto(link.href);
  await page.waitForSelector('nav[aria-label=Pages]');
  return { context, page };
}

/** navigation returns the paths of all pages that the navigation leads to. */
const navigation = (page) => page.$$eval('nav[aria-label=Pages] a', (all) => all.map((a) => a.href));

/** details returns pages that others lead to: of each list the first one, and what that leads to. */
async function details(page) {
  const kinds = new Map();
  const todo = await navigation(page);
  for (let url = todo.shift(); url; url = todo.shift()) {
    await page.goto(url);
    const links = await page.$$eval('main a[href]', (all) => all.map((a) => a.href));
    for (const link of links) {
      const kind = new URL(link).pathname.split('/')[1];
      if (/\/[^/]+\/./.test(new URL(link).pathname) && !kinds.has(kind)) {
        kinds.set(kind, link);
        todo.push(link);
      }
    }
  }
  return [...kinds.values()];
}

const engine = await readFile(require.resolve('accessibility-checker-engine/ace.js'), 'utf8');

/** access returns the serious findings of the accessibility checker on a page. */
async function access(page) {
  await page.evaluate(engine);
  return page.evaluate(async () => {
    const report = await new globalThis.ace.Checker().check(document, ['WCAG_2_2']);
    return report.results.filter(({ value }) => value[0] === 'VIOLATION' && value[1] === 'FAIL')
      .map(({ ruleId, message, path }) => `${ruleId}: ${message} at ${path.dom}`);
  });
}

async function picture(page, name) {
  if (shots) {
    await mkdir(shots, { recursive: true });
    await page.screenshot({ path: `${shots}/${name}.png`, fullPage: true });
  }
}

const name = (url) => new URL(url).pathname.replaceAll('/', '-').replace(/^-/, '') || 'overview';

const scenarios = {
  /** Every page of the navigation, and MORE paths beside them, light and dark. */
  async pages() {
    const { context, page } = await login();
    const more = (process.env.MORE ?? '').split(' ').filter(Boolean).map((path) => new URL(path, link).href);
    const all = [...await navigation(page), ...more, ...await details(page)];
    const findings = [];
    const paints = [];
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      for (const url of all) {
        const answer = await page.goto(url);
        if (answer.status() !== 200) {
          faults.push(`${url}: ${answer.status()}`);
        }
        await page.waitForSelector('h1');
        for (const finding of await access(page)) {
          findings.push(`${colorScheme} ${url}: ${finding}`);
        }
        paints.push(await page.evaluate(() => performance.getEntriesByType('paint')
          .find(({ name }) => name === 'first-contentful-paint')?.startTime ?? 0));
        await picture(page, `${name(url)}-${colorScheme}`);
      }
    }
    await context.close();
    return { pages: all, findings, slowestPaint: Math.max(...paints) };
  },

  /** Pages without JavaScript: all of them answer, and have a heading. */
  async plain() {
    const { context, page } = await login();
    const urls = await navigation(page);
    const cookies = await context.cookies();
    const plain = await browser.newContext({ javaScriptEnabled: false });
    await plain.addCookies(cookies);
    const without = await open(plain);
    const headings = [];
    for (const url of urls) {
      await without.goto(url);
      headings.push(await without.textContent('h1'));
    }
    return { headings };
  },

  /** Every page that links lead to from the navigation, and its JSON: TEXTS are shown, and become no markup. */
  async hostile() {
    const { page } = await login();
    const texts = JSON.parse(process.env.TEXTS);
    const marks = texts.map((text) => text.match(/mark-[a-z]+/)[0]);
    const shown = texts.map(() => 0);
    const literal = texts.map(() => 0);
    const markup = [];
    const seen = new Set();
    const next = await navigation(page);
    let long = false;
    while (next.length > 0 && seen.size < 120) {
      const url = next.shift();
      if (seen.has(url)) {
        continue;
      }
      seen.add(url);
      const answer = await page.goto(url);
      if (answer.status() !== 200) {
        markup.push(`${url}: ${answer.status()}`);
        continue;
      }
      const found = await page.evaluate(() => ({
        text: document.body.textContent,
        links: [...document.querySelectorAll('main a[href]')].map((a) => a.href.replace(/#.*/, '')),
        strange: [...document.querySelectorAll('*')].filter((e) => ['IMG', 'IFRAME', 'STYLE', 'OBJECT'].includes(e.tagName) ||
          e.tagName === 'SCRIPT' && !e.src || [...e.attributes].some((a) => a.name.startsWith('on')) ||
          e.href?.startsWith?.('javascript:')).map((e) => e.outerHTML.slice(0, 200)),
      }));
      found.strange.forEach((html) => markup.push(`${url}: ${html}`));
      texts.forEach((text, i) => {
        shown[i] += found.text.includes(marks[i]) ? 1 : 0;
        literal[i] += found.text.includes(text) ? 1 : 0;
      });
      long ||= found.text.includes('9007199254740993');
      next.push(...found.links.filter((link) => new URL(link).origin === new URL(url).origin));
      const twin = new URL(url);
      twin.searchParams.set('format', 'json');
      const json = await page.request.get(twin.href);
      const body = await json.text();
      if (/[<>&]/.test(body) || !json.headers()['content-type'].startsWith('application/json')) {
        markup.push(`${twin.href}: ${json.headers()['content-type']} with <, > or &: ${body.slice(0, 200)}`);
      }
    }
    return { pages: [...seen], markup, shown, literal, long };
  },

  /** The policy holds: what an event holds can't become markup by any way that a script has, on the page that shows it. */
  async policy() {
    const { page } = await login();
    await page.goto(new URL(process.env.EVENT, link).href);
    const outcome = await page.evaluate(() => {
      const shown = [...document.querySelectorAll('main .text, main pre')].map((e) => e.textContent)
        .find((text) => text.includes('<img src=x'));
      if (!shown) {
        return { shown: 'nothing of the event' };
      }
      const main = document.getElementById('main');
      const tries = {
        innerHTML: () => { main.innerHTML = shown; },
        outerHTML: () => { main.outerHTML = shown; },
        insertAdjacentHTML: () => main.insertAdjacentHTML('beforeend', shown),
        write: () => document.write(shown),
        parse: () => new DOMParser().parseFromString(shown, 'text/html'),
        srcdoc: () => { document.createElement('iframe').srcdoc = shown; },
        script: () => { document.createElement('script').textContent = shown; },
        policy: () => globalThis.trustedTypes.createPolicy('p', { createHTML: (text) => text }),
      };
      return Object.fromEntries(Object.entries(tries).map(([way, attempt]) => {
        try {
          attempt();
          return [way, 'done'];
        } catch (error) {
          return [way, error.constructor.name];
        }
      }));
    });
    outcome.images = await page.locator('img').count();
    faults.length = 0; // the violations were asked for
    return outcome;
  },
};

try {
  const seen = await scenarios[process.argv[2]]();
  console.log(JSON.stringify({ ...seen, faults }));
} finally {
  await browser.close();
}
